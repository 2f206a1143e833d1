package store

import (
	"bytes"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

var value3K = bytes.Repeat([]byte("0123456789abcdef"), 190)

func BenchmarkCreate(b *testing.B) {
	for _, writers := range []int{1, 32, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			s, _ := open(b, Config{Dir: b.TempDir()})
			var n, left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			done := make(chan error, writers)
			for range writers {
				go func() {
					var err error
					for err == nil && left.Add(-1) >= 0 {
						_, err = s.Create(b.Context(), fmt.Sprintf("/registry/pods/default/p-%08d", n.Add(1)), value3K, 0)
					}
					done <- err
				}()
			}
			for range writers {
				require.NoError(b, <-done)
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "puts/s")
		})
	}
}

func BenchmarkGet(b *testing.B) {
	s, _ := open(b, Config{Dir: b.TempDir()})
	_, err := s.Create(b.Context(), "/registry/pods/default/p", value3K, 0)
	require.NoError(b, err)
	for b.Loop() {
		if _, err := s.Get(b.Context(), "/registry/pods/default/p"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStart measures a start on a directory with 1,000 objects until the first read: with the message that makes
// the single member leader, and with the election timeout.
func BenchmarkStart(b *testing.B) {
	for _, waits := range []bool{false, true} {
		b.Run(fmt.Sprintf("waits=%v", waits), func(b *testing.B) {
			dir := b.TempDir()
			s, stop := open(b, Config{Dir: dir})
			for i := range 1000 {
				_, err := s.Create(b.Context(), fmt.Sprintf("/registry/pods/default/p-%08d", i), value3K, 0)
				require.NoError(b, err)
			}
			stop()
			for b.Loop() {
				s, stop := open(b, Config{Dir: dir}, func(s *Store) {
					if waits {
						s.replayed = never
					}
				})
				_, _, _, err := s.Range(b.Context(), "/registry/", "", 0, 0)
				require.NoError(b, err)
				b.StopTimer()
				stop()
				b.StartTimer()
			}
		})
	}
}

// never is replayed for an etcd that does not publish its raft status.
func never(uint64) bool { return false }
