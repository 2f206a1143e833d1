package indexes

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestIndexesText(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "0": "0", "0,1": "0,1", "0,1,2": "0-2", "0-1,3-5,7": "0,1,3-5,7", "5,1,3-4": "1,3-5", "1-3,2-9": "1-9",
		"0-999999999": "0-999",
		"998-2000":    "998,999", "1000": "", "x,3,-1,4-": "3", "7-2": "", "0--5": "", "1,1,1": "1",
		"99999999999999999999": "",
	} {
		require.Equal(t, want, Parse(text, 1000).String(), text)
	}
}

// TestIndexesAreASet checks that Set behaves like a set of integers.
func TestIndexesAreASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const below = 40
		draw := func(name string) []int { return rapid.SliceOf(rapid.IntRange(0, below-1)).Draw(t, name) }
		a, b := draw("a"), draw("b")
		x, y := Set(nil).With(a), Set(nil).With(b)
		in := func(list []int) (out []int) {
			for i := range below {
				if slices.Contains(list, i) {
					out = append(out, i)
				}
			}
			return out
		}
		both, common, missing := in(slices.Concat(a, b)), 0, []int{}
		for i := range below {
			require.Equal(t, slices.Contains(a, i), x.Has(i))
			if slices.Contains(a, i) && slices.Contains(b, i) {
				common++
			}
			if !slices.Contains(a, i) {
				missing = append(missing, i)
			}
		}
		n := rapid.IntRange(0, below).Draw(t, "n")
		require.Equal(t, missing[:min(n, len(missing))], x.Missing(n, below))
		require.Equal(t, common, x.Common(y))
		require.Equal(t, len(both), x.Union(y).Count())
		require.Equal(t, x.Union(y), x.With(b))
		require.Equal(t, x, Parse(x.String(), below), x.String())
	})
}
