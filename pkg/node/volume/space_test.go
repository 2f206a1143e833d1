package volume

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestTwoReadersOfOneVolume: both get the same answer.
func TestTwoReadersOfOneVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer, calls := make(chan struct{}), atomic.Int32{}
		s := Spaces{stat: func(string) (Space, error) {
			calls.Add(1)
			<-answer
			return Space{Capacity: 7}, nil
		}}
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() {
				space, err := s.Read("/mnt")
				assert.NoError(t, err)
				assert.EqualValues(t, 7, space.Capacity)
			})
			synctest.Wait()
		}
		close(answer)
		readers.Wait()
		require.EqualValues(t, 1, calls.Load())
	})
}

func TestFullVolumes(t *testing.T) {
	for name, tt := range map[string]struct {
		space Space
		full  bool
	}{
		"unknown":          {Space{}, false},
		"half":             {Space{Capacity: 1000, Available: 500, Inodes: 100, InodesFree: 50}, false},
		"no bytes":         {Space{Capacity: 1000, Inodes: 100, InodesFree: 50}, true},
		"almost no bytes":  {Space{Capacity: 1000, Available: 9, Inodes: 100, InodesFree: 50}, true},
		"little":           {Space{Capacity: 1000, Available: 11, Inodes: 100, InodesFree: 50}, false},
		"no inodes":        {Space{Capacity: 1000, Available: 500, Inodes: 100}, true},
		"inodes on demand": {Space{Capacity: 1000, Available: 500}, false},
		"a block volume":   {Space{Block: true, Capacity: 1000}, false},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.full, tt.space.Full()) })
	}
}

// TestAFileSystemThatDoesNotAnswer: a file system that hangs blocks one goroutine, and each reader for a second.
func TestAFileSystemThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, calls := make(chan struct{}), atomic.Int32{}
		s := Spaces{stat: func(string) (Space, error) {
			calls.Add(1)
			<-hang
			return Space{Capacity: 7}, nil
		}}
		_, err := s.Read("/mnt")
		require.ErrorContains(t, err, "has not answered for 1s")
		_, err = s.Read("/mnt")
		require.ErrorContains(t, err, "has not answered for 1s")
		time.Sleep(time.Minute)
		before := time.Now()
		_, err = s.Read("/mnt")
		require.ErrorContains(t, err, "has not answered for 1m1s")
		require.Equal(t, before, time.Now(), "nobody waits for it again")
		require.EqualValues(t, 1, calls.Load())
		close(hang)
		synctest.Wait()
		space, err := s.Read("/mnt")
		require.NoError(t, err)
		require.EqualValues(t, 7, space.Capacity)
	})
	var s Spaces
	space, err := s.Read(t.TempDir())
	require.NoError(t, err)
	require.Positive(t, space.Capacity)
	_, err = s.Read("/does/not/exist")
	require.Error(t, err)
}
