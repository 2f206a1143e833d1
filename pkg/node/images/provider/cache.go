package provider

import (
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/node/runtime"
)

// maxEntries limits the cached answers of a plugin, of at most maxOutput bytes each; the first to expire is dropped.
const maxEntries = 256

// cache caches a plugin's answers for as long as the plugin says. It is safe for concurrent use.
type cache struct {
	mu      sync.Mutex
	entries map[string]entry
}

type entry struct {
	logins map[string]runtime.Auth
	until  time.Time
}

// get returns a valid answer, which must not be modified.
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
