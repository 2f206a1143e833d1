package cost

import (
	"fmt"
	"strings"
)

// order is the order of generated names.
type order int

const (
	rising order = iota
	falling
	same
)

// many repeats a part until the body has n bytes. %[1]d in the part is a number.
func many(n int, head, part, tail string, o order) string {
	var b strings.Builder
	b.Grow(n + len(part))
	b.WriteString(head)
	count := max(1, (n-len(head)-len(tail))/(len(fmt.Sprintf(part, 1_000_000))+1))
	for i := range count {
		if i > 0 {
			b.WriteByte(',')
		}
		number := 1_000_000 + i
		switch o {
		case falling:
			number = 1_000_000 + count - i
		case same:
			number = 1_000_000
		}
		fmt.Fprintf(&b, part, number)
	}
	b.WriteString(tail)
	return b.String()
}
