// Conversations, kept in this browser's IndexedDB, one record each. A browser without it (some private
// windows) keeps them until the tab is closed: `lasts` is false then.

const NAME = "nibble";
const STORE = "conversations";

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function open() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  return settled(request);
}

export class Store {
  constructor() {
    this.kept = new Map();
    this.lasts = true;
  }

  async open() {
    try {
      this.db = await open();
      this.db.onversionchange = () => this.db.close();
      for (const conversation of await settled(this.store("readonly").getAll())) this.kept.set(conversation.id, conversation);
    } catch {
      this.lasts = false;
    }
  }

  store(mode) {
    return this.db.transaction(STORE, mode).objectStore(STORE);
  }

  // The latest first.
  list() {
    return [...this.kept.values()].sort((a, b) => b.updated - a.updated);
  }

  get(id) {
    return this.kept.get(id);
  }

  // False where the browser would not keep it: its disk is full, or it forbids storage.
  async save(conversation) {
    this.kept.set(conversation.id, conversation);
    return this.write((store) => store.put(conversation));
  }

  async remove(id) {
    this.kept.delete(id);
    return this.write((store) => store.delete(id));
  }

  async clear() {
    this.kept.clear();
    return this.write((store) => store.clear());
  }

  async write(act) {
    try {
      await settled(act(this.store("readwrite")));
      this.lasts = true;
    } catch {
      this.lasts = false;
    }
    return this.lasts;
  }
}
