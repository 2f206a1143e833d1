package queue

import "container/heap"

// ordered is a heap of entries that supports removal. place returns where an entry keeps its index in this heap.
type ordered struct {
	list  []*entry
	less  func(a, b *entry) bool
	place func(*entry) *int
}

func (o *ordered) Len() int           { return len(o.list) }
func (o *ordered) Less(i, j int) bool { return o.less(o.list[i], o.list[j]) }
func (o *ordered) Swap(i, j int) {
	o.list[i], o.list[j] = o.list[j], o.list[i]
	*o.place(o.list[i]), *o.place(o.list[j]) = i, j
}

// Push implements heap.Interface.
func (o *ordered) Push(x any) {
	e := x.(*entry)
	*o.place(e) = len(o.list)
	o.list = append(o.list, e)
}

// Pop implements heap.Interface.
func (o *ordered) Pop() any {
	last := len(o.list) - 1
	e := o.list[last]
	o.list[last] = nil
	if o.list = o.list[:last]; last == 0 {
		o.list = nil
	}
	return e
}

func (o *ordered) add(e *entry)    { heap.Push(o, e) }
func (o *ordered) remove(e *entry) { heap.Remove(o, *o.place(e)) }

// first returns the first entry, or nil.
func (o *ordered) first() *entry {
	if o == nil || len(o.list) == 0 {
		return nil
	}
	return o.list[0]
}

func inOrder(e *entry) *int     { return &e.index }
func bySeq(a, b *entry) bool    { return a.Seq < b.Seq }
func byDue(a, b *entry) bool    { return a.Due.Before(b.Due) }
func inExpiry(e *entry) *int    { return &e.expiry }
func byExpiry(a, b *entry) bool { return a.Expires.Before(b.Expires) }
