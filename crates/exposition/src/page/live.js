// Keeps an open page up to date: reloads the document when the server announces a publication, and updates the changed elements.
'use strict';

(() => {
  const state = document.getElementById('live-state');
  const button = document.getElementById('pause');
  const RETRY = 10000;
  let source, retry, loading = false, paused = false;

  const say = (text, stale) => {
    if (state.textContent !== text) state.textContent = text;
    document.documentElement.toggleAttribute('data-stale', stale);
  };

  // An update keeps elements that the scripts have filled, and details that the reader has opened.
  const options = {
    onBeforeElUpdated(from, to) {
      if (from.hasAttribute('data-keep')) return false;
      if (from.localName === 'details') to.open = from.open;
      return !from.isEqualNode(to);
    },
  };

  function load() {
    if (loading || paused) return;
    loading = true;
    // The browser parses the document, so that the script never interprets text as markup.
    const request = new XMLHttpRequest();
    request.open('GET', './');
    request.responseType = 'document';
    request.timeout = RETRY;
    request.onload = () => {
      if (paused) return;
      const page = request.status === 200 && request.response;
      if (!page) {
        say(`No values (${request.status})`, true);
        return;
      }
      document.title = page.title;
      morphdom(document.body, page.body, options);
      say('Live', false);
      document.dispatchEvent(new Event('updated'));
    };
    request.onloadend = () => { loading = false; };
    request.send();
  }

  function close() {
    clearTimeout(retry);
    source?.close();
    source = undefined;
  }

  function open() {
    close();
    source = new EventSource('page/updates');
    source.addEventListener('publication', load);
    source.onerror = () => {
      say('Connection lost, trying again', true);
      // If the server refuses the stream, for example at the limit on streams, the browser does not retry.
      if (source.readyState === EventSource.CLOSED) retry = setTimeout(open, RETRY);
    };
  }

  const follow = () => (paused || document.hidden ? close() : open());

  button.addEventListener('click', () => {
    paused = !paused;
    button.textContent = paused ? 'Resume' : 'Pause';
    say(paused ? 'Paused' : 'Live', false);
    follow();
  });
  // A hidden page needs no stream.
  document.addEventListener('visibilitychange', follow);
  button.textContent = 'Pause';
  button.parentElement.hidden = false;
  follow();
})();
