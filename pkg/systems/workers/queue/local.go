package queue

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// Bounds. A namespace may use as much of the server's memory and disk for messages as the other namespaces leave free.
const (
	overhead = 1 << 10 // the memory of a message besides its payload, in bytes
	maxText  = 512     // of an error or a reason, in bytes; longer text is cut

	defaultMemory = 256 << 20
	defaultDisk   = 1 << 30
	// maxBytes bounds the payloads of a queue that are not dead.
	maxBytes = 64 << 20
	// maxDead and maxDeadBytes bound the dead messages of a queue. Beyond them the oldest are removed.
	maxDead      = 1000
	maxDeadBytes = 16 << 20
)

// Config configures Local.
type Config struct {
	// File is the database of durable messages, which is created with the first one. Empty means that no message is
	// durable.
	File string
	// Memory and Disk bound the messages of all queues, in bytes; 0 means 256 MiB and 1 GiB. Reserve is the free space
	// of the disk, in bytes, below which durable messages are refused.
	Memory, Disk, Reserve int64
	Logger                *slog.Logger
	// NATS has the streams of queues that Place names.
	NATS *NATS
	// Changed is called, in any goroutine, when Depth has another Failure or messages of earlier processes were added.
	Changed func(Key)
	// At is called at each step of a write, in tests.
	At func(step string)
}

// Local implements Queues in this process.
type Local struct {
	c Config

	mu     sync.Mutex
	queues map[Key]*list
	used   map[string]*usage // by namespace
	all    usage
	seq    uint64
	disk   *disk // nil without a File
	// streams are the disks of queues that are not in File.
	streams map[Key]*disk
	running sync.WaitGroup // of streams
	sweeper *time.Timer    // nil unless DedupIDs of ended messages are remembered
	closed  bool
}

type usage struct{ memory, disk int64 }

// list is one queue.
type list struct {
	all     map[string]*entry
	waiting map[string]*ordered // by target
	delayed ordered             // by due
	expires ordered             // waiting and delayed entries
	dead    ordered
	flight  int
	// groups has the messages with each OrderKey that are not dead, and blocked counts those that are blocked.
	groups  map[string]*group
	blocked int
	// ids has the last message with each DedupID, and ended the ended ones of them.
	ids   map[string]*entry
	ended ordered
	// bytes counts all payloads, deadBytes and flightBytes the payloads of dead messages and of those in flight.
	bytes, deadBytes, flightBytes int64
}

// entry is a message in a queue. The lock of Local guards it.
type entry struct {
	Message
	key           Key
	index, expiry int // its places in the heaps

	disk    *disk  // nil unless the message is durable
	stored  bool   // the disk's store may have it
	writing *round // Append waits for it
	gone    bool
}

var _ Queues = (*Local)(nil)

// Open returns the queues, with the durable messages of earlier processes. Close ends it.
func Open(c Config) (*Local, error) {
	if c.Memory == 0 {
		c.Memory = defaultMemory
	}
	if c.Disk == 0 {
		c.Disk = defaultDisk
	}
	if c.NATS == nil {
		c.NATS = &NATS{}
	}
	if c.At == nil {
		c.At = func(string) {}
	}
	l := &Local{c: c, queues: map[Key]*list{}, used: map[string]*usage{}, streams: map[Key]*disk{}}
	if c.File == "" {
		return l, nil
	}
	d := newDisk(l, &file{path: c.File, reserve: c.Reserve})
	if err := d.load(); err != nil {
		return nil, err
	}
	l.disk = d
	go d.write()
	return l, nil
}

func (l *Local) queue(k Key) *list {
	q := l.queues[k]
	if q == nil {
		q = &list{
			all: map[string]*entry{}, waiting: map[string]*ordered{}, delayed: ordered{less: byDue, place: inOrder},
			expires: ordered{less: byExpiry, place: inExpiry}, dead: ordered{less: bySeq, place: inOrder},
			ended: ordered{less: bySeq, place: inOrder},
		}
		l.queues[k] = q
	}
	return q
}

// take reserves space for a message, or returns why there is none.
func (l *Local) take(namespace string, memory, disk int64) error {
	u := l.used[namespace]
	if u == nil {
		u = &usage{}
	}
	if u.memory+memory > l.c.Memory-l.all.memory || u.disk+disk > l.c.Disk-l.all.disk {
		return ErrNoRoom
	}
	l.used[namespace] = u
	u.memory, u.disk = u.memory+memory, u.disk+disk
	l.all.memory, l.all.disk = l.all.memory+memory, l.all.disk+disk
	return nil
}

func (l *Local) give(namespace string, memory, disk int64) {
	u := l.used[namespace]
	u.memory, u.disk = u.memory-memory, u.disk-disk
	l.all.memory, l.all.disk = l.all.memory-memory, l.all.disk-disk
	if *u == (usage{}) {
		delete(l.used, namespace)
	}
}

func (e *entry) cost() (memory, disk int64) {
	if e.disk == nil || e.disk.resident {
		return overhead + int64(e.Size), 0
	}
	return overhead, overhead + int64(e.Size)
}

// Append implements Queues.
func (l *Local) Append(k Key, limits Limits, msgs []Message) (accepted func() []error) {
	errs := make([]error, len(msgs))
	rounds := make([]*round, len(msgs)) // in which the messages are written
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.streams[k]; d != nil && !d.loaded && slices.ContainsFunc(msgs, func(m Message) bool { return m.Durable }) {
		return func() []error {
			err := d.ready()
			if err == nil {
				return l.Append(k, limits, msgs)()
			}
			for i := range errs {
				errs[i] = err
			}
			return errs
		}
	}
	q := l.queue(k)
	for i := range msgs {
		rounds[i], errs[i] = l.admit(q, k, limits, msgs[i])
	}
	l.tidy(k, q)
	return func() []error {
		for i, r := range rounds {
			if r != nil {
				if <-r.done; r.err != nil {
					errs[i] = r.err
				}
			}
		}
		return errs
	}
}

// admit adds a message, and returns the round that writes it, or nil if it is not durable.
func (l *Local) admit(q *list, k Key, limits Limits, m Message) (*round, error) {
	if first := q.repeated(&m); first != nil && !l.closed {
		return first.writing, &DuplicateError{ID: first.ID}
	}
	switch {
	case l.closed:
		return nil, ErrClosed
	case len(q.all)-q.dead.Len()-q.flight >= limits.Messages, q.bytes-q.deadBytes+int64(len(m.Payload)) > maxBytes:
		return nil, ErrFull
	case q.all[m.ID] != nil:
		return nil, ErrDuplicate
	case m.Durable && l.of(k) == nil:
		return nil, ErrNoDisk
	}
	m.Size, m.State, m.DeadLetter = len(m.Payload), Waiting, bounded.Text(m.DeadLetter, maxText)
	e := &entry{Message: m, key: k}
	if m.Durable {
		e.disk = l.of(k)
		if err := e.disk.admit(&m); err != nil {
			return nil, err
		}
	}
	memory, disk := e.cost()
	err := l.take(k.Namespace, memory, disk)
	for err != nil && q.ended.Len() > 0 { // messages are worth more than DedupIDs
		l.forget(q, q.ended.first())
		err = l.take(k.Namespace, memory, disk)
	}
	if err != nil {
		return nil, err
	}
	l.seq++
	e.Seq = l.seq
	l.queues[k] = q // forget may have removed it
	q.all[m.ID] = e
	q.bytes += int64(m.Size)
	q.identify(e)
	if !m.Durable {
		q.wait(e)
		return nil, nil
	}
	e.disk.dirty[e.Seq] = e
	e.writing = e.disk.flush()
	return e.writing, nil
}

// wait makes an entry wait for earlier ones with its OrderKey, until it is due, and then for a pod.
func (q *list) wait(e *entry) {
	q.expires.add(e)
	if e.OrderKey != "" && q.block(e) {
		return
	}
	if e.Due.After(time.Now()) {
		e.State = Delayed
		q.delayed.add(e)
		return
	}
	e.State = Waiting
	o := q.waiting[e.Target]
	if o == nil {
		o = &ordered{less: bySeq, place: inOrder}
		q.waiting[e.Target] = o
	}
	o.add(e)
}

// leave removes an entry from the heap of its state.
func (q *list) leave(e *entry) {
	switch e.State {
	case Waiting:
		o := q.waiting[e.Target]
		if o.remove(e); o.Len() == 0 {
			delete(q.waiting, e.Target)
		}
		q.expires.remove(e)
	case Delayed:
		q.delayed.remove(e)
		q.expires.remove(e)
	case Blocked:
		q.blocked--
		q.groups[e.OrderKey].blocked.remove(e)
		q.expires.remove(e)
	case Dead:
		q.dead.remove(e)
		q.deadBytes -= int64(e.Size)
	case InFlight:
		q.flight--
		q.flightBytes -= int64(e.Size)
	}
}

// drop removes an entry, which is in no heap. Its DedupID may be remembered.
func (l *Local) drop(e *entry) {
	q := l.queues[e.key]
	if q.all[e.ID] == e {
		delete(q.all, e.ID)
	}
	q.bytes -= int64(e.Size)
	q.release(e)
	if !l.remember(q, e) {
		e.gone = true
		memory, disk := e.cost()
		l.give(e.key.Namespace, memory, disk)
		l.tidy(e.key, q)
	}
	l.changed(e)
}

// changed has a durable entry written, without a wait.
func (l *Local) changed(e *entry) {
	if e.disk != nil {
		e.disk.dirty[e.Seq] = e
		e.disk.soon(lazily)
	}
}

// Redrive implements Queues.
func (l *Local) Redrive(k Key, id string, expires time.Time) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[k]
	if q == nil {
		return 0
	}
	for _, e := range slices.Clone(q.dead.list) {
		if id == "" || e.ID == id {
			q.leave(e)
			e.Attempts, e.Error, e.Expires = 0, "", expires
			q.wait(e)
			l.changed(e)
			n++
		}
	}
	return n
}

// Purge implements Queues.
func (l *Local) Purge(k Key, dead bool, removed func(id string)) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[k]
	if q == nil {
		return 0
	}
	for _, e := range q.all {
		if e.writing != nil || e.State == InFlight || dead && e.State != Dead {
			continue
		}
		q.leave(e)
		l.drop(e)
		removed(e.ID)
		n++
	}
	return n
}

// List implements Queues. It sorts without the lock: a queue may have 100,000 messages.
func (l *Local) List(k Key, state State, after uint64, limit int) []Message {
	l.mu.Lock()
	var all []*entry
	if q := l.queues[k]; q != nil && state == Dead {
		all = slices.Clone(q.dead.list)
	} else if q != nil {
		for _, e := range q.all {
			if e.Seq > after && e.writing == nil {
				all = append(all, e)
			}
		}
	}
	l.mu.Unlock()
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.Seq, b.Seq) })
	var list []Message
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range all {
		if e.Seq <= after || e.gone || state != "" && e.State != state {
			continue
		}
		if len(list) == limit {
			break
		}
		m := e.Message
		m.Payload = nil
		list = append(list, m)
	}
	return list
}

// Find implements Queues.
func (l *Local) Find(k Key, id string) (Message, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[k]
	if q == nil || q.all[id] == nil || q.all[id].writing != nil {
		return Message{}, false
	}
	return q.all[id].filled(), true
}

// Depth implements Queues.
func (l *Local) Depth(k Key) (d Depth) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.streams[k]; s != nil {
		d.Failure = s.failed
	}
	q := l.queues[k]
	if q == nil {
		return d
	}
	d.Waiting, d.Delayed, d.InFlight, d.Dead = q.expires.Len(), q.delayed.Len()+q.blocked, q.flight, q.dead.Len()
	d.Bytes = q.bytes - q.deadBytes - q.flightBytes
	if e := q.expires.first(); e != nil {
		d.Oldest = e.Arrived // of those with the same time in the queue, the first to expire is the oldest
	}
	return d
}

// Next implements Queues.
func (l *Local) Next(k Key) (at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[k]
	if q == nil {
		return at
	}
	if e := q.expires.first(); e != nil {
		at = e.Expires
	}
	if e := q.delayed.first(); e != nil && e.Due.Before(at) {
		at = e.Due
	}
	return at
}

// Keys implements Queues.
func (l *Local) Keys() []Key {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := make([]Key, 0, len(l.queues))
	for k, q := range l.queues {
		if len(q.all) > 0 {
			keys = append(keys, k)
		}
	}
	return keys
}
