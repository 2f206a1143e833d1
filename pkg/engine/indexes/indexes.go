// Package indexes implements sets of completion indexes as in the statuses of Indexed jobs and of arrays of tasks. Its
// invariant: a set's size depends on its gaps, not on the number of its indexes.
package indexes

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Range is the range of completion indexes from First to Last, both inclusive.
type Range struct{ First, Last int }

// Set is a set of completion indexes: ordered ranges that neither overlap nor touch. For example, all but one of 10^9
// indexes are two ranges.
type Set []Range

// Parse parses the output of String, such as "1,3-5". It drops indexes that are not below the limit and invalid text,
// because other clients may have written the status.
func Parse(s string, below int) Set {
	if s == "" {
		return nil
	}
	var out Set
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		if err != nil || first < 0 || first >= below {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(to); err != nil || last < first {
				continue
			}
		}
		out = append(out, Range{first, min(last, below-1)})
	}
	return normal(out)
}

// normal sorts ranges and merges those that overlap or touch. It modifies its argument.
func normal(ranges []Range) Set {
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	out := ranges[:0]
	for _, r := range ranges {
		if n := len(out); n > 0 && r.First <= out[n-1].Last+1 {
			out[n-1].Last = max(out[n-1].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// String formats the set as in the status: two consecutive indexes are listed, longer ranges are written as "3-5".
func (x Set) String() string {
	var b strings.Builder
	for _, r := range x {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(r.First))
		if r.Last == r.First {
			continue
		}
		if r.Last == r.First+1 {
			b.WriteByte(',')
		} else {
			b.WriteByte('-')
		}
		b.WriteString(strconv.Itoa(r.Last))
	}
	return b.String()
}

// Count returns the number of indexes in the set.
func (x Set) Count() (n int) {
	for _, r := range x {
		n += r.Last - r.First + 1
	}
	return n
}

// Has reports whether i is in the set.
func (x Set) Has(i int) bool {
	at, found := slices.BinarySearchFunc(x, i, func(r Range, i int) int { return cmp.Compare(r.Last, i) })
	return found || at < len(x) && x[at].First <= i
}

// With returns the union of the set and list, which may be in any order.
func (x Set) With(list []int) Set {
	if len(list) == 0 {
		return x
	}
	all := make([]Range, 0, len(x)+len(list))
	all = append(all, x...)
	for _, i := range list {
		all = append(all, Range{i, i})
	}
	return normal(all)
}

// Union returns the indexes that are in either set.
func (x Set) Union(y Set) Set {
	if len(y) == 0 {
		return x
	}
	return normal(slices.Concat(x, y))
}

// Common returns the number of indexes that are in both sets.
func (x Set) Common(y Set) (n int) {
	for i, j := 0, 0; i < len(x) && j < len(y); {
		if common := min(x[i].Last, y[j].Last) - max(x[i].First, y[j].First) + 1; common > 0 {
			n += common
		}
		if x[i].Last < y[j].Last {
			i++
		} else {
			j++
		}
	}
	return n
}

// Missing returns the n lowest indexes below the limit that are not in the set.
func (x Set) Missing(n, below int) []int {
	out := make([]int, 0, n)
	next := 0
	for _, r := range append(slices.Clone(x), Range{below, below}) {
		for ; next < min(r.First, below) && len(out) < n; next++ {
			out = append(out, next)
		}
		next = max(next, r.Last+1)
	}
	return out
}
