// Browsers run no worker for a page that was opened from a folder: an inner page runs the search
// instead. The plugin `offline` would load such a script from another site.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const page = frame.contentDocument;
      page.open();
      page.write("<body></body>");
      page.close();
      const load = (src) =>
        new Promise((done) => {
          const script = page.createElement("script");
          script.src = src;
          script.onload = done;
          page.body.appendChild(script);
        });
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = (...urls) =>
        urls.reduce((before, src) => before.then(() => load(src)), Promise.resolve());
      this.ready = load(url);
    }

    postMessage(data) {
      const { inside } = this;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
  };
}
