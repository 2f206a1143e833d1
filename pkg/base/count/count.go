// Package count writes numbers of things for people.
package count

import (
	"fmt"
	"strings"
)

// Of returns n and the noun, in the plural unless n is 1: "1 object", "2 processes".
func Of[N int | int32 | int64](n N, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "s"), strings.HasSuffix(noun, "x"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
