/* Browsers refuse to start a worker from a file, and the search of the site runs in one. In pages
   that are opened as files, this class runs the script of the worker in a hidden frame instead. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inner = frame.contentWindow;
      const waiting = [];
      this.send = (data) => waiting.push(data);
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      inner.importScripts = (...names) =>
        names.reduce(
          (before, name) =>
            before.then(
              () =>
                new Promise((done, failed) => {
                  const script = inner.document.createElement("script");
                  script.src = name;
                  script.onload = done;
                  script.onerror = failed;
                  inner.document.body.appendChild(script);
                }),
            ),
          Promise.resolve(),
        );
      inner.importScripts(new URL(url, document.baseURI).href).then(() => {
        this.send = (data) =>
          inner.dispatchEvent(new inner.MessageEvent("message", { data }));
        waiting.splice(0).forEach(this.send);
      });
    }

    postMessage(data) {
      this.send(data);
    }

    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
