CREATE TABLE tasks (
	sequence INTEGER NOT NULL, 
	task_sha256 BLOB NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	population VARCHAR(64) NOT NULL, 
	definition BLOB NOT NULL, 
	signature BLOB NOT NULL, 
	planned_rounds INTEGER NOT NULL, 
	state INTEGER NOT NULL, 
	failure TEXT NOT NULL, 
	abandoned FLOAT, 
	PRIMARY KEY (sequence), 
	UNIQUE (task_sha256)
)
--
CREATE INDEX ix_tasks_state ON tasks (state)
--
CREATE TABLE charters (
	population VARCHAR(64) NOT NULL, 
	sequence INTEGER NOT NULL, 
	signed BLOB NOT NULL, 
	PRIMARY KEY (population, sequence)
)
--
CREATE TABLE item_features (
	task_sha256 BLOB NOT NULL, 
	matrix BLOB NOT NULL, 
	PRIMARY KEY (task_sha256), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE TABLE versions (
	task_sha256 BLOB NOT NULL, 
	version INTEGER NOT NULL, 
	manifest BLOB NOT NULL, 
	signature BLOB NOT NULL, 
	published FLOAT, 
	state BLOB, 
	tables BLOB, 
	PRIMARY KEY (task_sha256, version), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE TABLE rounds (
	task_sha256 BLOB NOT NULL, 
	round INTEGER NOT NULL, 
	state INTEGER NOT NULL, 
	contributions INTEGER NOT NULL, 
	opened FLOAT NOT NULL, 
	closed FLOAT NOT NULL, 
	release BLOB NOT NULL, 
	release_signature BLOB NOT NULL, 
	round_key BLOB NOT NULL, 
	PRIMARY KEY (task_sha256, round), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE TABLE token_keys (
	task_sha256 BLOB NOT NULL, 
	round INTEGER NOT NULL, 
	signed BLOB NOT NULL, 
	PRIMARY KEY (task_sha256, round), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE TABLE local_rows (
	task_sha256 BLOB NOT NULL, 
	place INTEGER NOT NULL, 
	overwritten INTEGER NOT NULL, 
	content BLOB NOT NULL, 
	PRIMARY KEY (task_sha256, place), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE TABLE local_reports (
	task_sha256 BLOB NOT NULL, 
	report_id BLOB NOT NULL, 
	received FLOAT NOT NULL, 
	content BLOB NOT NULL, 
	PRIMARY KEY (task_sha256, report_id), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
 WITHOUT ROWID
--
CREATE TABLE task_history (
	sequence INTEGER NOT NULL, 
	task_sha256 BLOB NOT NULL, 
	at FLOAT NOT NULL, 
	event VARCHAR(32) NOT NULL, 
	round INTEGER, 
	detail TEXT NOT NULL, 
	PRIMARY KEY (sequence), 
	FOREIGN KEY(task_sha256) REFERENCES tasks (task_sha256)
)
--
CREATE INDEX ix_task_history_task_sha256 ON task_history (task_sha256)
--
CREATE TRIGGER task_history_refuses_update BEFORE UPDATE ON task_history BEGIN SELECT RAISE(ABORT, 'task_history is append-only'); END
--
CREATE TRIGGER task_history_refuses_delete BEFORE DELETE ON task_history BEGIN SELECT RAISE(ABORT, 'task_history is append-only'); END
