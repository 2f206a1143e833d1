package provider

import (
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// maxEntries limits the answers of one plugin that are kept: beyond it the one that is valid for the shortest time
// goes. An answer has at most maxOutput bytes.
const maxEntries = 256

// cache are the answers of a plugin, for as long as it said. Safe for concurrent use.
type cache struct {
	mu      sync.Mutex
	entries map[string]entry
}

type entry struct {
	logins map[string]runtime.Auth
	until  time.Time
}

// get returns an answer that is still valid. It is not to be changed.
func (c *cache) get(key string) (map[string]runtime.Auth, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok || !time.Now().Before(e.until) {
		delete(c.entries, key)
		return nil, false
	}
	return e.logins, true
}

func (c *cache) put(key string, logins map[string]runtime.Auth, valid time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.entries == nil {
		c.entries = map[string]entry{}
	}
	c.entries[key] = entry{logins, now.Add(valid)}
	if len(c.entries) <= maxEntries {
		return
	}
	first := ""
	for k, e := range c.entries {
		if k != key && (first == "" || e.until.Before(c.entries[first].until)) {
			first = k
		}
	}
	delete(c.entries, first)
}
