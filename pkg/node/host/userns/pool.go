package userns

import (
	"errors"
	"fmt"
	"strings"
	"sync"
)

// ErrNoRange is returned by Take when all ranges are in use.
var ErrNoRange = errors.New("no free range of user IDs")

// Range is a range of user IDs, and of group IDs with the same numbers, on the machine. In the pod they are 0 to
// Count-1. The zero value is empty.
type Range struct {
	First uint32 `json:"first"`
	Count uint32 `json:"count"`
}

func (r Range) end() uint64 { return uint64(r.First) + uint64(r.Count) }

// pool allocates ranges of one size, round-robin, so that a released range is reused as late as possible.
type pool struct {
	mu    sync.Mutex
	all   Range  // its size is a multiple of each
	each  uint32 // IDs per range
	next  uint32 // number of the range to try next
	held  map[string]Range
	taken map[uint32]int // by number of a range: how many held ranges overlap it
}

func newPool(all Range, each uint32) *pool {
	return &pool{all: all, each: each, held: map[string]Range{}, taken: map[uint32]int{}}
}

// take allocates a range to owner, or returns the one it has.
func (p *pool) take(owner string) (Range, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, has := p.held[owner]; has {
		return r, nil
	}
	count := p.all.Count / p.each
	for i := range count {
		n := (p.next + i) % count
		if p.taken[n] == 0 {
			r := Range{First: p.all.First + n*p.each, Count: p.each}
			p.next = (n + 1) % count
			p.hold(owner, r)
			return r, nil
		}
	}
	return Range{}, fmt.Errorf("%w: all %d of %d IDs from %d on are in use", ErrNoRange, count, p.each, p.all.First)
}

// keep records a range that an earlier process allocated. It may be of another size and reach beyond the pool.
// Allocation continues after it.
func (p *pool) keep(owner string, r Range) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(owner)
	if last, any := p.hold(owner, r); any {
		p.next = (last + 1) % (p.all.Count / p.each)
	}
}

func (p *pool) release(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(owner)
}

// ofPods reports whether a pod has a range. The names of other owners contain a slash.
func (p *pool) ofPods() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for owner := range p.held {
		if !strings.Contains(owner, "/") {
			return true
		}
	}
	return false
}

// hold assigns the range to the owner. It returns the number of the last pool range that it overlaps, if any.
func (p *pool) hold(owner string, r Range) (last uint32, any bool) {
	p.held[owner] = r
	for n := range p.numbers(r) {
		p.taken[n]++
		last, any = n, true
	}
	return last, any
}

func (p *pool) drop(owner string) {
	r, has := p.held[owner]
	if !has {
		return
	}
	delete(p.held, owner)
	for n := range p.numbers(r) {
		if p.taken[n]--; p.taken[n] == 0 {
			delete(p.taken, n)
		}
	}
}

// numbers yields the numbers of the pool's ranges that overlap r.
func (p *pool) numbers(r Range) func(yield func(uint32) bool) {
	first, end := max(uint64(r.First), uint64(p.all.First)), min(r.end(), p.all.end())
	return func(yield func(uint32) bool) {
		for id := first - (first-uint64(p.all.First))%uint64(p.each); id < end; id += uint64(p.each) {
			if !yield(uint32((id - uint64(p.all.First)) / uint64(p.each))) {
				return
			}
		}
	}
}
