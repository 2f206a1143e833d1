package store

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
)

// batchEvents limits the events in a batch; a single revision may exceed it.
const batchEvents = 1024

// Watch reports changes under prefix after revision rev in batches that never split a revision, until ctx is done or
// the store ends it; the returned function then gives the reason. An empty batch reports progress to its revision. A
// slow reader does not slow down writes: it gets ErrCompacted once the history it needs has been compacted.
func (s *Store) Watch(ctx context.Context, prefix string, rev int64) (<-chan Batch, func() error) {
	return s.watch(ctx, prefix, rev, true)
}

// Changes is Watch without previous values, for readers that already have them.
func (s *Store) Changes(ctx context.Context, prefix string, rev int64) (<-chan Batch, func() error) {
	return s.watch(ctx, prefix, rev, false)
}

func (s *Store) watch(ctx context.Context, prefix string, rev int64, prev bool) (<-chan Batch, func() error) {
	out := make(chan Batch)
	var failure atomic.Pointer[error]
	end := func() error {
		if err := failure.Load(); err != nil {
			return *err
		}
		return nil
	}
	s.stopMu.Lock()
	e, err := s.running()
	if err == nil {
		s.watches.Add(1)
	}
	s.stopMu.Unlock()
	if err != nil {
		failure.Store(&err)
		close(out)
		return out, end
	}
	go func() {
		defer s.watches.Done()
		defer close(out)
		err := s.stream(ctx, e, prefix, rev, prev, out)
		failure.Store(&err)
	}()
	return out, end
}

// stream watches the keys of all prefixes, so that every revision reports progress.
func (s *Store) stream(ctx context.Context, e endpoint, prefix string, rev int64, prev bool, out chan<- Batch) error {
	changes, cancel, err := e.watch(ctx, rev+1, prev)
	if err != nil {
		return err
	}
	ended := false
	defer func() {
		if !ended {
			_ = cancel()
		}
	}()
	lost := func() error {
		ended = true
		return s.classify(ctx, cancel())
	}
	for {
		b := Batch{Revision: rev}
		var err error
		select {
		case r, ok := <-changes:
			if !ok {
				return lost()
			}
			err = add(&b, r, prefix)
		case <-ctx.Done():
			return ctx.Err()
		case <-s.stopping:
			return fmt.Errorf("%w: it is stopping", ErrUnavailable)
		}
	gather:
		for err == nil && len(b.Events) < batchEvents {
			select {
			case r, ok := <-changes:
				if !ok {
					err = lost()
					break gather
				}
				err = add(&b, r, prefix)
			default:
				break gather
			}
		}
		if b.Revision > rev {
			rev = b.Revision
			if prev {
				previous(ctx, e, b.Events)
			} else {
				for i := range b.Events {
					b.Events[i].Prev = KV{}
				}
			}
			s.openAll(b.Events)
			select {
			case out <- b:
			case <-ctx.Done():
				return ctx.Err()
			case <-s.stopping:
				return fmt.Errorf("%w: it is stopping", ErrUnavailable)
			}
		}
		if err != nil {
			return err
		}
	}
}

func add(b *Batch, r mvcc.WatchResponse, prefix string) error {
	if r.CompactRevision != 0 {
		return ErrCompacted
	}
	for _, ev := range r.Events {
		b.Revision = max(b.Revision, ev.Kv.ModRevision)
		if !strings.HasPrefix(string(ev.Kv.Key), prefix) {
			continue
		}
		c := Event{KV: KV{Key: string(ev.Kv.Key), Value: ev.Kv.Value, Revision: ev.Kv.ModRevision}}
		if ev.Type == mvccpb.Event_DELETE {
			c.Deleted, c.Value = true, nil
		}
		// A key in its first version has no previous value. For a deletion it is unknown whether it had one.
		if ev.Kv.CreateRevision != ev.Kv.ModRevision {
			c.Prev.Key = c.Key
		}
		if before := ev.PrevKv; before != nil && len(before.Key) > 0 {
			c.Prev = KV{Key: c.Key, Value: before.Value, Revision: before.ModRevision}
		}
		b.Events = append(b.Events, c)
	}
	return nil
}

// previous reads the previous value of each change. It stays empty if the history is compacted.
func previous(ctx context.Context, e endpoint, events []Event) {
	for i := range events {
		ev := &events[i]
		if ev.Prev.Key == "" || ev.Prev.Revision != 0 {
			continue
		}
		ev.Prev = KV{}
		r, err := e.read(ctx, []byte(ev.Key), nil, mvcc.RangeOptions{Limit: 1, Rev: ev.Revision - 1})
		if err == nil && len(r.KVs) == 1 {
			ev.Prev = KV{Key: ev.Key, Value: r.KVs[0].Value, Revision: r.KVs[0].ModRevision}
		}
	}
}
