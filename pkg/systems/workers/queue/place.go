package queue

import (
	"fmt"
	"time"
)

// of returns the disk of a queue's durable messages, or nil. The caller holds the lock.
func (l *Local) of(k Key) *disk {
	if d := l.streams[k]; d != nil {
		return d
	}
	return l.disk
}

// Place implements Queues.
func (l *Local) Place(k Key, id string) (ready func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.streams[k]
	switch {
	case l.closed:
		return func() error { return ErrClosed }
	case before != nil && before.id == id:
		return before.ready
	case before != nil:
		before.end() // of a worker with the same name that was deleted
	}
	s := newStream(l.c.NATS, k, id)
	d := newDisk(l, s)
	d.key, d.id, d.resident = k, id, true
	l.streams[k] = d
	s.unwatch = l.c.NATS.Watch(d.doubt)
	l.running.Go(d.run)
	return d.ready
}

// ready waits until the first attempt to read the store, or the next one if that failed, is over.
func (d *disk) ready() error {
	d.of.mu.Lock()
	loaded, now := d.loaded, d.round
	d.of.mu.Unlock()
	if loaded {
		return nil
	}
	<-now.done
	return now.err
}

// run opens the store, again and again if need be, and writes then.
func (d *disk) run() {
	for {
		err := d.load()
		d.of.mu.Lock()
		now := d.round
		d.round, now.err = &round{done: make(chan struct{})}, d.unavailable(err)
		changed := err == nil || d.failed == nil
		d.failed = now.err
		d.of.mu.Unlock()
		close(now.done)
		if changed {
			d.notify()
		}
		if err == nil {
			d.write()
			break
		}
		if changed {
			d.of.c.Logger.Warn("could not read messages", "store", d.String(), "error", err)
		}
		select {
		case <-time.After(rewrite):
		case <-d.ctx.Done():
		}
		if d.ctx.Err() != nil {
			break
		}
	}
	d.abandon()
}

// unavailable returns the error for senders of messages that the store does not take.
func (d *disk) unavailable(err error) error {
	if err == nil || !d.resident {
		return err
	}
	return fmt.Errorf("%w: %s: %w", ErrUnavailable, d.String(), err)
}

// doubt has the store checked: its connection was lost, with an error, or is back.
func (d *disk) doubt(err error) {
	d.of.mu.Lock()
	defer d.of.mu.Unlock()
	if d.loaded {
		if err != nil && d.failed == nil {
			d.failed = d.unavailable(err)
		}
		d.flush()
	}
}

func (d *disk) notify() {
	if d.of.c.Changed != nil {
		d.of.c.Changed(d.key)
	}
}

// rest writes all messages of the queue.
func (d *disk) rest(dirty map[uint64]*entry) ([]change, error) {
	d.of.mu.Lock()
	if q := d.of.queues[d.key]; q != nil {
		for _, e := range q.all {
			if e.disk == d && e.writing == nil {
				dirty[e.Seq] = e
			}
		}
		for _, e := range q.ended.list {
			if e.disk == d {
				dirty[e.Seq] = e
			}
		}
	}
	changes, err := d.changes(dirty)
	d.of.mu.Unlock()
	if err == nil {
		err = d.commit(changes)
	}
	return changes, err
}

// abandon forgets the messages of a stream: another process keeps it, it was discarded, or this process ends.
func (d *disk) abandon() {
	l := d.of
	l.mu.Lock()
	if l.streams[d.key] == d {
		delete(l.streams, d.key)
	}
	if q := l.queues[d.key]; q != nil {
		l.forgetAll(q)
		for _, e := range q.all {
			if e.disk != d {
				continue
			}
			if e.writing == nil {
				q.leave(e)
			}
			l.drop(e)
		}
	}
	if d.timer != nil {
		d.timer.Stop()
	}
	d.round.err = ErrClosed
	close(d.round.done)
	discarded := d.discarded
	l.mu.Unlock()
	if err := d.close(discarded); err != nil {
		l.c.Logger.Warn("could not delete the messages of a deleted worker", "store", d.String(), "error", err)
	}
}

// Discard implements Queues.
func (l *Local) Discard(k Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q := l.queues[k]; q != nil {
		l.forgetAll(q)
	}
	if d := l.streams[k]; d != nil {
		d.discarded = true
		d.end()
	}
}

// Close writes the last changes and closes the stores. Later messages are refused, later changes are not written.
func (l *Local) Close() error {
	l.mu.Lock()
	again := l.closed
	l.closed = true
	if l.sweeper != nil {
		l.sweeper.Stop()
	}
	for _, d := range l.streams {
		d.end()
	}
	l.mu.Unlock()
	if again {
		return nil
	}
	l.running.Wait()
	d := l.disk
	if d == nil {
		return nil
	}
	d.end()
	<-d.ended
	l.mu.Lock()
	defer l.mu.Unlock()
	if d.timer != nil {
		d.timer.Stop()
	}
	return d.close(l.all.disk == 0)
}
