/* Search where the pages are opened from a folder: a browser starts no worker from a file, so a hidden frame stands in
   for one. The theme would load such a script from another host; it takes this one because of its name. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      // Messages wait until the script of the worker has run.
      this.loaded = new Promise((resolve) => {
        const inner = frame.contentDocument
        inner.open()
        inner.write("<!doctype html><body></body>")
        inner.close()
        // What the worker sends reaches its listeners directly.
        this.inside.postMessage = (data) => {
          const message = new MessageEvent("message", { data })
          setTimeout(() => {
            this.dispatchEvent(message)
            if (this.onmessage) this.onmessage(message)
          })
        }
        const script = inner.createElement("script")
        script.src = String(url)
        script.onload = resolve
        inner.body.appendChild(script)
      })
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {}
  }
}
