package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestLastSettles checks that settled is called once after settling, unless the process stops before.
func TestLastSettles(t *testing.T) {
	for stop, want := range map[time.Duration]int{settling - 1: 0, settling + 1: 1, time.Hour: 1} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), stop)
			defer cancel()
			n := 0
			l := &last{notify: func(context.Context) {}, settled: func() { n++ }}
			require.NoError(t, l.Run(ctx))
			require.Equal(t, want, n)
			<-l.Ready()
		})
	}
}
