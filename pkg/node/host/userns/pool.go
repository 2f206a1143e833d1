package userns

import (
	"errors"
	"fmt"
	"strings"
	"sync"
)

// ErrNoRange is returned by Take when all ranges are in use.
var ErrNoRange = errors.New("no free range of user IDs")

// Range are IDs of the machine's users, and of its groups with the same numbers. A pod has them as 0 to Count-1. The
// zero value has none.
type Range struct {
	First uint32 `json:"first"`
	Count uint32 `json:"count"`
}

func (r Range) end() uint64 { return uint64(r.First) + uint64(r.Count) }

// pool gives ranges of one size, round-robin, so that one that was released is given again as late as possible.
type pool struct {
	mu    sync.Mutex
	all   Range  // a multiple of each
	each  uint32 // IDs of one range
	next  uint32 // number of the range that is tried next
	held  map[string]Range
	taken map[uint32]int // how many ranges that are held have IDs of the range with this number
}

func newPool(all Range, each uint32) *pool {
	return &pool{all: all, each: each, held: map[string]Range{}, taken: map[uint32]int{}}
}

// take gives a range to owner, or returns the one it has.
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

// keep marks a range as taken by an earlier process. It may be of another size, and reach beyond those that are given.
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

// ofPods reports whether a pod has a range. The names of other owners have a slash.
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

// hold gives the range to the owner, and returns the last number that it concerns, if any.
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

// numbers yields the numbers of the ranges that have IDs in common with one.
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
