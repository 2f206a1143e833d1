package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.etcd.io/etcd/server/v3/storage/mvcc"
)

// biggest is the number of kinds named when the store is nearly full, measurePage the values per read to find them.
const (
	biggest     = 3
	measurePage = 500
)

// watchQuota logs when quota usage rises above nearlyFull, and when it is back to normal.
func (s *Store) watchQuota(used int64) {
	switch percent := used * 100 / s.cfg.QuotaBytes; {
	case percent >= nearlyFull && s.space.nearly.CompareAndSwap(false, true):
		s.space.wanted.Store(true)
		s.compactSoon()
		select {
		case s.measure <- struct{}{}:
		default:
		}
	case percent < calmAgain && s.space.nearly.CompareAndSwap(true, false):
		s.cfg.Logger.Info("store quota usage back to normal", "usedMB", used>>20, "quotaMB", s.cfg.QuotaBytes>>20)
	}
}

// Warning returns a warning with the largest kinds if the quota is nearly used up, else "".
func (s *Store) Warning() string {
	e := s.etcd.Load()
	if e == nil || !s.space.nearly.Load() {
		return ""
	}
	_, used := (*e).sizes()
	s.watchQuota(used)
	if !s.space.nearly.Load() {
		return ""
	}
	return fmt.Sprintf("%d MB of the quota of %d MB are in use: %s", used>>20, s.cfg.QuotaBytes>>20, s.advice())
}

func (s *Store) advice() string {
	most := ""
	if text := s.biggest.Load(); text != nil && *text != "" {
		most = " (most is in " + *text + ")"
	}
	return "delete objects that are not needed" + most + ", or raise --store-quota"
}

// measured finds the largest kinds and logs a warning. It reads all values, so it runs only when usage rises above
// nearlyFull.
func (s *Store) measured(ctx context.Context, e endpoint) {
	sizes := map[string]int64{}
	const prefix = "/registry/"
	for from := ""; ; {
		// No total count: counting the rest for each page takes minutes.
		kvs, _, _, err := s.stored(ctx, prefix, from, mvcc.RangeOptions{Limit: measurePage})
		if err != nil {
			return // stopping, or the revision was compacted: the warning has less detail
		}
		for _, kv := range kvs {
			kind, _, _ := strings.Cut(strings.TrimPrefix(kv.Key, prefix), "/")
			sizes[kind] += int64(len(kv.Key) + len(kv.Value))
		}
		if len(kvs) < measurePage {
			break
		}
		from = kvs[len(kvs)-1].Key + "\x00"
	}
	kinds := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int { return int(sizes[b] - sizes[a]) })
	var parts []string
	for _, kind := range kinds[:min(biggest, len(kinds))] {
		parts = append(parts, fmt.Sprintf("%s: %d MB", kind, sizes[kind]>>20))
	}
	text := strings.Join(parts, ", ")
	_, used := e.sizes()
	s.biggest.Store(&text)
	s.cfg.Logger.Warn("store quota nearly used up, delete objects that are not needed or raise --store-quota",
		"usedMB", used>>20, "quotaMB", s.cfg.QuotaBytes>>20, "largest", text)
}
