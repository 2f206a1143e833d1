package bounded

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Rate{Most: 2, Every: time.Second}
		allowed := func(n int) (did, skipped int) {
			for range n {
				if s, ok := r.Allow(); ok {
					did, skipped = did+1, skipped+s
				}
			}
			return did, skipped
		}
		did, skipped := allowed(10)
		require.Equal(t, []int{2, 0}, []int{did, skipped})
		time.Sleep(time.Second - time.Nanosecond)
		did, _ = allowed(1)
		require.Zero(t, did)
		time.Sleep(time.Nanosecond)
		did, skipped = allowed(3)
		require.Equal(t, []int{2, 9}, []int{did, skipped})
		time.Sleep(time.Hour)
		did, skipped = allowed(1)
		require.Equal(t, []int{1, 1}, []int{did, skipped})
	})
}
