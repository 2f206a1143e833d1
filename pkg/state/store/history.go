package store

import (
	"context"
	"errors"
	"fmt"
)

// History returns the changes under prefix in revisions (after, to], with previous values. It starts later, after
// revision begin, if older history is compacted, if the later changes have more than limit bytes of values, or if a
// value cannot be decrypted.
func (s *Store) History(ctx context.Context, prefix string,
	after, to, limit int64) (events []Event, begin int64, err error) {
	e, err := s.running()
	if err != nil {
		return nil, 0, err
	}
	for {
		begin = max(after, e.first())
		events, begin, err = s.between(ctx, prefix, begin, to, limit)
		dropped := e.first()
		if errors.Is(err, ErrCompacted) && dropped > begin {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		// The previous values of revisions compacted in the meantime may be missing.
		if dropped > begin {
			n := 0
			for n < len(events) && events[n].Revision <= dropped {
				n++
			}
			events, begin = events[n:], min(dropped, to)
		}
		for i := len(events) - 1; i >= 0; i-- {
			if events[i].Err != nil || events[i].Prev.Err != nil {
				rev := events[i].Revision
				for i++; i < len(events) && events[i].Revision == rev; i++ {
				}
				events, begin = events[i:], rev
				break
			}
		}
		return events, begin, nil
	}
}

func (s *Store) between(ctx context.Context, prefix string,
	begin, to, limit int64) (events []Event, _ int64, err error) {
	if begin >= to {
		return nil, to, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	batches, end := s.Watch(ctx, prefix, begin)
	var bytes int64
	first := 0
	for b := range batches {
		for _, ev := range b.Events {
			if ev.Revision > to {
				break
			}
			events = append(events, ev)
			bytes += size(ev)
			for ; bytes > limit && first < len(events); first++ {
				bytes -= size(events[first])
				begin = events[first].Revision
				events[first] = Event{}
			}
		}
		if b.Revision >= to {
			return events[first:], begin, nil
		}
	}
	if err = end(); err == nil {
		err = fmt.Errorf("%w: the stream of changes ended", ErrUnavailable)
	}
	return nil, begin, err
}

func size(ev Event) int64 { return int64(len(ev.Value) + len(ev.Prev.Value)) }
