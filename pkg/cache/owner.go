package cache

import (
	"strings"
	"sync"

	"github.com/tidwall/btree"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// owners finds objects of all kinds by the UID of an owner.
type owners struct {
	mu      sync.RWMutex
	entries btree.Map[string, *Entry] // UID, a zero byte, Entry.Key
}

func (o *owners) update(prev, entry *Entry) {
	var before, after []metav1.OwnerReference
	if prev != nil {
		before = prev.Object.GetOwnerReferences()
	}
	if entry != nil {
		after = entry.Object.GetOwnerReferences()
	}
	if len(before) == 0 && len(after) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range before {
		o.entries.Delete(string(r.UID) + "\x00" + prev.Key)
	}
	for _, r := range after {
		o.entries.Set(string(r.UID)+"\x00"+entry.Key, entry)
	}
}

// ByOwner lists the entries of all kinds that name uid in their ownerReferences, in key order.
func (c *Cache) ByOwner(uid string) []*Entry {
	c.owners.mu.RLock()
	defer c.owners.mu.RUnlock()
	var entries []*Entry
	prefix := uid + "\x00"
	c.owners.entries.Ascend(prefix, func(key string, e *Entry) bool {
		if !strings.HasPrefix(key, prefix) {
			return false
		}
		entries = append(entries, e)
		return true
	})
	return entries
}
