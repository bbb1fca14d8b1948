// A disk that loses what was not synced and fails when told to: preloaded into a process (disk.py says how).
//
// What a file or folder held at its last successful fsync is kept in FAULTS_SHADOW, by inode and time of birth: that is
// what a power cut leaves. A failed fsync drops pages as Linux does: they stay in the page cache and count as clean, so
// that a later fsync succeeds without them, until they are written again or the cache is dropped (posix_fadvise).
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096
#define MOST 4096
#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sync_at, write_at, write_errno;
static long syncs, writes;

// A program that tests start, and cannot call: its n-th sync fails with EIO, its n-th write with an errno (n:errno).
__attribute__((constructor)) static void planned(void) {
  const char *sync = getenv("FAULTS_FAIL_SYNC"), *write = getenv("FAULTS_FAIL_WRITE");
  if (sync) sync_at = atoi(sync);
  if (write) sscanf(write, "%d:%d", &write_at, &write_errno);
}

void faults_fail_sync(int nth) { sync_at = nth; }
void faults_fail_write(int nth, int code) { write_at = nth; write_errno = code; }
long faults_syncs(void) { return syncs; }
long faults_writes(void) { return writes; }

// Writes the name of a file in the shadow.
int faults_number(const char *path, char *into) {
  struct statx found;
  if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, STATX_BTIME | STATX_INO, &found)) return -1;
  sprintf(into, "%llu-%lld.%u", (unsigned long long)found.stx_ino, (long long)found.stx_btime.tv_sec,
          found.stx_btime.tv_nsec);
  return 0;
}

// Whether a descriptor is of a file or folder below FAULTS_ROOT; its name in the shadow.
static int tracked(int fd, char *shadow) {
  const char *root = getenv("FAULTS_ROOT"), *where = getenv("FAULTS_SHADOW");
  char link[64], path[4096];
  if (!root || !where) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  if (strncmp(path, root, strlen(root)) || strstr(path, "-shm")) return 0;
  struct statx found;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME | STATX_INO, &found)) return 0;
  snprintf(shadow, 4096, "%s/%llu-%lld.%u", where, (unsigned long long)found.stx_ino,
           (long long)found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
  return S_ISDIR(found.stx_mode) ? 2 : S_ISREG(found.stx_mode) ? 1 : 0;
}

static int opened(const char *path, int flags) { return REAL(int, open, const char *, int, mode_t)(path, flags, 0600); }

static int reopened(int fd, int flags) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return opened(link, flags);
}

// The pages that a failed fsync dropped: one byte each, at their number.
static int dropped(const char *shadow, int flags) {
  char path[4200];
  snprintf(path, sizeof path, "%s.dropped", shadow);
  return opened(path, flags);
}

static void copy_pages(int fd, const char *shadow, int failed) {
  char data[PAGE], old[PAGE], mark;
  // A database is open for both, and is read as it is: to close another descriptor of it would drop its process's locks.
  int from = (fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY ? reopened(fd, O_RDONLY) : fd;
  int into = opened(shadow, O_RDWR | O_CREAT), lost = dropped(shadow, failed ? O_RDWR | O_CREAT : O_RDWR);
  struct stat found;
  off_t size = fstat(from, &found) ? 0 : found.st_size;
  for (off_t page = 0; page * PAGE < size; page++) {
    ssize_t count = pread(from, data, PAGE, page * PAGE), before = pread(into, old, PAGE, page * PAGE);
    int same = count == before && !memcmp(data, old, count);
    mark = 0;
    if (lost >= 0 && pread(lost, &mark, 1, page) < 1) mark = 0;
    if (failed && !same) {
      mark = 1;
      REAL(ssize_t, pwrite64, int, const void *, size_t, off_t)(lost, &mark, 1, page);
    } else if (!failed && !mark && !same) {
      REAL(ssize_t, pwrite64, int, const void *, size_t, off_t)(into, data, count, page * PAGE);
    }
  }
  if (!failed) ftruncate(into, size);
  if (lost >= 0) close(lost);
  if (from != fd) close(from);
  close(into);
}

static void copy_names(int fd, const char *shadow) {
  char path[4200];
  snprintf(path, sizeof path, "%s.new", shadow);
  FILE *into = fopen(path, "w");
  DIR *folder = fdopendir(reopened(fd, O_RDONLY | O_DIRECTORY));
  for (struct dirent *entry; (entry = readdir(folder));) {
    struct statx found;
    if (entry->d_name[0] == '.' && (!entry->d_name[1] || !strcmp(entry->d_name, ".."))) continue;
    if (statx(fd, entry->d_name, AT_SYMLINK_NOFOLLOW, STATX_BTIME | STATX_INO, &found)) continue;
    fprintf(into, "%c %llu-%lld.%u %s\n", S_ISDIR(found.stx_mode) ? 'd' : 'f', (unsigned long long)found.stx_ino,
            (long long)found.stx_btime.tv_sec, found.stx_btime.tv_nsec, entry->d_name);
  }
  closedir(folder);
  fclose(into);
  rename(path, shadow);
}

static int synced(int fd, int (*real)(int)) {
  char shadow[4096];
  int kind = tracked(fd, shadow), done = 0;
  if (!kind) return real(fd);
  pthread_mutex_lock(&lock);
  int fails = ++syncs == sync_at;
  if (kind == 1) copy_pages(fd, shadow, fails);
  if (kind == 2 && !fails) copy_names(fd, shadow);
  if (fails) {
    errno = EIO;
    done = -1;
  }
  pthread_mutex_unlock(&lock);
  return done;
}

static int store(const char *path, const struct stat *unused, int kind, struct FTW *place) {
  char shadow[4096];
  int fd = opened(path, O_RDONLY), tracks = fd < 0 ? 0 : tracked(fd, shadow);
  if (tracks == 1) copy_pages(fd, shadow, 0);
  if (tracks == 2) copy_names(fd, shadow);
  if (fd >= 0) close(fd);
  return 0;
}

// Everything at once; it is never the sync that fails.
void sync(void) {
  const char *root = getenv("FAULTS_ROOT");
  pthread_mutex_lock(&lock);
  if (root && getenv("FAULTS_SHADOW")) nftw(root, store, 16, FTW_PHYS);
  pthread_mutex_unlock(&lock);
  REAL(void, sync, void)();
}

int fsync(int fd) { return synced(fd, REAL(int, fsync, int)); }
int fdatasync(int fd) { return synced(fd, REAL(int, fdatasync, int)); }

// Of a write: how many bytes it may take, or -1 where it fails. Pages that are written again are dirty again.
static ssize_t allowed(int fd, size_t count, off_t at) {
  char shadow[4096], mark = 0;
  if (tracked(fd, shadow) != 1) return count;
  pthread_mutex_lock(&lock);
  ssize_t given = count;
  long number = ++writes;
  if (write_at && number == write_at) given = count / 2;  // a short write, and then an error
  if (write_at && (number == write_at + 1 || (number == write_at && !given && count))) {
    errno = write_errno;
    given = -1;
  }
  int lost = given > 0 ? dropped(shadow, O_RDWR) : -1;
  if (lost >= 0) {
    if (at < 0) at = lseek(fd, 0, SEEK_CUR);
    for (off_t page = at / PAGE; page * PAGE < at + given; page++)
      REAL(ssize_t, pwrite64, int, const void *, size_t, off_t)(lost, &mark, 1, page);
    close(lost);
  }
  pthread_mutex_unlock(&lock);
  return given;
}

ssize_t write(int fd, const void *data, size_t count) {
  ssize_t given = allowed(fd, count, -1);
  return given < 0 ? -1 : REAL(ssize_t, write, int, const void *, size_t)(fd, data, given);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off_t at) {
  ssize_t given = allowed(fd, count, at);
  return given < 0 ? -1 : REAL(ssize_t, pwrite64, int, const void *, size_t, off_t)(fd, data, given, at);
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at) { return pwrite64(fd, data, count, at); }

static int advised(int fd, int advice) {
  char shadow[4096], data[PAGE], mark;
  if (advice != POSIX_FADV_DONTNEED || tracked(fd, shadow) != 1) return 0;
  int lost = dropped(shadow, O_RDWR), from = opened(shadow, O_RDONLY), into = reopened(fd, O_RDWR);
  for (off_t page = 0; lost >= 0 && pread(lost, &mark, 1, page) == 1; page++) {
    if (!mark) continue;
    memset(data, 0, PAGE);
    ssize_t count = from < 0 ? 0 : pread(from, data, PAGE, page * PAGE);
    off_t size = lseek(into, 0, SEEK_END);
    if (count < PAGE) count = size - page * PAGE < PAGE ? size - page * PAGE : PAGE;
    REAL(ssize_t, pwrite64, int, const void *, size_t, off_t)(into, data, count, page * PAGE);
    mark = 0;
    REAL(ssize_t, pwrite64, int, const void *, size_t, off_t)(lost, &mark, 1, page);
  }
  close(lost);
  close(from);
  close(into);
  return 0;
}

int posix_fadvise(int fd, off_t start, off_t length, int advice) { return advised(fd, advice); }
int posix_fadvise64(int fd, off_t start, off_t length, int advice) { return advised(fd, advice); }
