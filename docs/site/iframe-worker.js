/* Pages opened as files may not start workers. Their search then runs in a hidden frame, which looks like a worker to both sides. */
if (location.protocol === 'file:') {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement('iframe')
      frame.hidden = true
      frame.srcdoc = '<!doctype html>'
      this.inside = new Promise((resolve, reject) => {
        frame.onload = () => {
          const inside = frame.contentWindow
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent('message', { data }))
          const script = inside.document.createElement('script')
          script.src = url
          script.onload = () => resolve(inside)
          script.onerror = () => reject(new Error(`${url} cannot be read`))
          inside.document.head.append(script)
        }
      })
      this.frame = frame
      document.body.append(frame)
    }

    async postMessage(data) {
      const inside = await this.inside
      inside.dispatchEvent(new MessageEvent('message', { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
