package cache

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// Unreadable is a stored object that cannot be decrypted or decoded, and therefore has no entry in the cache.
type Unreadable struct {
	Key      string
	Revision int64
	Err      error
}

// unreadable records Unreadable objects by key, at most one per stored object. add and drop accept a nil receiver.
type unreadable struct {
	n     atomic.Int64
	mu    sync.RWMutex
	byKey map[string]Unreadable
}

func (u *unreadable) add(kv kind.KV, err error) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byKey == nil {
		u.byKey = map[string]Unreadable{}
	}
	if kv.Revision >= u.byKey[kv.Key].Revision {
		u.byKey[kv.Key] = Unreadable{Key: kv.Key, Revision: kv.Revision, Err: err}
	}
	u.n.Store(int64(len(u.byKey)))
}

// drop removes an object recorded at rev or earlier: it has become readable or was deleted.
func (u *unreadable) drop(key string, rev int64) {
	if u == nil || u.n.Load() == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if one, ok := u.byKey[key]; ok && one.Revision <= rev {
		delete(u.byKey, key)
		u.n.Store(int64(len(u.byKey)))
	}
}

func (u *unreadable) forget(prefix string) {
	if u.n.Load() == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	maps.DeleteFunc(u.byKey, func(key string, _ Unreadable) bool { return strings.HasPrefix(key, prefix) })
	u.n.Store(int64(len(u.byKey)))
}

func (u *unreadable) reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.byKey)
	u.n.Store(0)
}

// Unreadable lists the unreadable stored objects under a key prefix, in key order. A healthy store has none.
func (c *Cache) Unreadable(prefix string) []Unreadable {
	u := &c.unreadable
	if u.n.Load() == 0 {
		return nil
	}
	u.mu.RLock()
	defer u.mu.RUnlock()
	var all []Unreadable
	for key, one := range u.byKey {
		if strings.HasPrefix(key, prefix) {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b Unreadable) int { return cmp.Compare(a.Key, b.Key) })
	return all
}

// UnreadableAt returns the object with that key if it is unreadable.
func (c *Cache) UnreadableAt(key string) (Unreadable, bool) {
	u := &c.unreadable
	if u.n.Load() == 0 {
		return Unreadable{}, false
	}
	u.mu.RLock()
	defer u.mu.RUnlock()
	one, ok := u.byKey[key]
	return one, ok
}
