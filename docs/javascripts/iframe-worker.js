/* Browsers start no worker for a page that was opened from a folder (file://). The search is one: there,
   it runs in a hidden frame instead. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.answer = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.inside.document.open();
      this.inside.document.write(`<script>
        postMessage = (data) => answer(data);
        importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((resolve, reject) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, onload: resolve, onerror: reject });
          document.head.append(script);
        })));
      </script><script src="${url}"></script>`);
      this.inside.document.close();
      this.started = new Promise((resolve) => frame.addEventListener("load", resolve));
    }

    postMessage(data) {
      this.started.then(() => {
        this.inside.dispatchEvent(new MessageEvent("message", { data }));
      });
    }

    terminate() {}
  };
}
