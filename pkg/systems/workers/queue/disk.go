package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"
)

// store keeps durable messages. Only admit and payload may be called while another goroutine is in a method.
type store interface {
	// open returns the messages of earlier processes. It may be called again after an error.
	open(ctx context.Context) ([]*record, error)
	// commit writes the changes. After an error any part of them may be written, and the same changes or later ones of
	// the same messages follow. Without changes it checks that the store can be written.
	commit(changes []change) error
	// admit returns why the store takes no such message. The caller holds the lock of Local.
	admit(m *Message) error
	// payload returns the payload of a stored message.
	payload(seq uint64) []byte
	// close ends the use of the store. empty means that it has no messages, or that they go with it.
	close(empty bool) error
	// String names the store in logs.
	String() string
}

// lazily is how long a change waits for others if no sender waits for it: the attempt and the end of a message that a
// program handles quickly need no writes of their own. A process that is killed meanwhile delivers the message again.
const lazily = 50 * time.Millisecond

// epoch is added to the sequence numbers of messages when a process takes a stream: it is more than a former process
// can have used for messages that have not reached the stream yet.
const epoch = 1 << 20

// rewrite is the pause after a failed write of changes for which no sender waits.
const rewrite = time.Second

// disk writes the durable messages of queues to their store. One goroutine writes: each commit covers all changes so
// far, one sync for all senders that wait. Local's lock guards the fields from dirty on, but for the channels.
type disk struct {
	of *Local
	store
	// The following fields are set for the stream of one queue: resident means that payloads stay in memory too.
	key      Key
	id       string
	resident bool

	dirty  map[uint64]*entry
	round  *round
	loaded bool
	failed error       // why the last commit failed
	timer  *time.Timer // nil unless a lazy write is planned
	wake   chan struct{}
	ctx    context.Context //nolint:containedctx // until end is called
	end    func()
	ended  chan struct{}
	// discarded means that the store goes with its messages.
	discarded bool
}

// round is the next commit. done is closed when it is over, and err set before.
type round struct {
	done chan struct{}
	err  error
}

// record is a message in a store.
type record struct {
	Key     Key
	Message Message
}

func newDisk(l *Local, s store) *disk {
	ctx, end := context.WithCancel(context.Background())
	return &disk{
		of: l, store: s, dirty: map[uint64]*entry{}, round: &round{done: make(chan struct{})},
		wake: make(chan struct{}, 1), ctx: ctx, end: end, ended: make(chan struct{}),
	}
}

// flush has the changes written now.
func (d *disk) flush() *round {
	select {
	case d.wake <- struct{}{}:
	default:
	}
	return d.round
}

func (d *disk) soon(after time.Duration) {
	if d.timer == nil {
		d.timer = time.AfterFunc(after, func() {
			select {
			case d.wake <- struct{}{}:
			default:
			}
		})
	}
}

// load reads the messages of earlier processes. Claimed ones wait again.
func (d *disk) load() error {
	list, err := d.open(d.ctx)
	if err != nil {
		return err
	}
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	d.loaded = true
	slices.SortFunc(list, func(a, b *record) int { return cmp.Compare(a.Message.Seq, b.Message.Seq) })
	for _, r := range list {
		d.of.seq = max(d.of.seq, r.Message.Seq)
		d.restore(r)
	}
	if d.resident {
		d.of.seq += epoch
	}
	return nil
}

// restore adds a message from the store. The bounds do not apply: it was accepted earlier.
func (d *disk) restore(r *record) {
	l := d.of
	e := &entry{Message: r.Message, key: r.Key, disk: d, stored: true}
	u := l.used[r.Key.Namespace]
	if u == nil {
		u = &usage{}
		l.used[r.Key.Namespace] = u
	}
	memory, disk := e.cost()
	u.memory, u.disk = u.memory+memory, u.disk+disk
	l.all.memory, l.all.disk = l.all.memory+memory, l.all.disk+disk
	q := l.queue(r.Key)
	q.identify(e)
	if e.State == ended {
		l.keep(q, e)
		return
	}
	q.all[e.ID] = e
	q.bytes += int64(e.Size)
	switch e.State {
	case Dead:
		q.dead.add(e)
		q.deadBytes += int64(e.Size)
	default:
		q.wait(e)
	}
}

// filled returns the message with its payload.
func (e *entry) filled() Message {
	m := e.Message
	if e.stored && !e.disk.resident {
		m.Payload = e.disk.payload(e.Seq)
	}
	return m
}

// change is what a commit does with an entry.
type change struct {
	*entry
	value   []byte // its record; nil if it is gone
	payload []byte // nil if it is written already
	// until is when an ended message goes; zero for others.
	until time.Time
}

// write writes the changes until the end, and once more then.
func (d *disk) write() {
	defer close(d.ended)
	l := d.of
	for last, down := false, false; !last; {
		select {
		case <-d.wake:
		case <-d.ctx.Done():
			last = true
		}
		l.mu.Lock()
		dirty, now, failed := d.dirty, d.round, d.failed
		d.dirty, d.round = map[uint64]*entry{}, &round{done: make(chan struct{})}
		if d.timer != nil {
			d.timer.Stop()
			d.timer = nil
		}
		changes, err := d.changes(dirty)
		if d.discarded {
			err = ErrClosed
		}
		l.mu.Unlock()
		l.c.At("before the transaction")
		if err == nil && (len(changes) > 0 || failed != nil) {
			err = d.commit(changes)
		}
		if errors.Is(err, errEmptied) {
			l.c.Logger.Warn("writing all messages again", "store", d.String(), "messages", len(changes), "error", err)
			changes, err = d.rest(dirty)
		}
		l.c.At("after the transaction")
		l.mu.Lock()
		if err != nil && !down && !d.discarded {
			l.c.Logger.Warn("could not write messages", "store", d.String(), "error", err)
		}
		now.err = d.unavailable(err)
		d.failed = now.err
		for i := range changes {
			if c := &changes[i]; c.payload != nil && (err == nil || d.resident) {
				c.stored = true
				if !d.resident {
					c.entry.Payload = nil
				}
			}
		}
		for _, e := range dirty {
			d.written(e, err, last)
		}
		if err != nil && !last {
			d.soon(rewrite)
		}
		l.mu.Unlock()
		close(now.done)
		if (err != nil) != down {
			down = !down
			d.notify()
		}
		if errors.Is(err, errTaken) {
			return
		}
	}
}

// written ends a commit for an entry. The caller holds the lock.
func (d *disk) written(e *entry, err error, last bool) {
	switch {
	case e.writing != nil && err == nil:
		e.writing = nil
		d.of.queues[e.key].wait(e)
	case e.writing != nil:
		d.of.drop(e)
		e.writing = nil
	case err != nil && !last && (e.stored || !e.gone):
		d.dirty[e.Seq] = e
	}
}

// changes encodes the changes of the entries, in the order of their sequence numbers.
func (d *disk) changes(dirty map[uint64]*entry) ([]change, error) {
	list := make([]change, 0, len(dirty))
	for _, seq := range slices.Sorted(maps.Keys(dirty)) {
		c := change{entry: dirty[seq]}
		if c.gone && !c.stored {
			continue
		}
		if !c.gone {
			r := record{Key: c.entry.key, Message: c.Message}
			r.Message.Payload = nil
			if c.State == ended {
				c.until = c.Arrived.Add(Window)
			}
			var err error
			if c.value, err = json.Marshal(&r); err != nil {
				return nil, err
			}
			if !c.stored || d.resident {
				if c.payload = c.Payload; c.payload == nil {
					c.payload = []byte{}
				}
			}
		}
		list = append(list, c)
	}
	return list, nil
}
