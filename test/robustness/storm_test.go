package robustness

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/test/host"
)

const (
	stormRounds  = 5
	stormWriters = 32
	// stormWrites is the number of writes before each kill: more than between two snapshots of the store, or
	// between two commits of its database.
	stormWrites = 20000
	// On an idle machine a start takes 1 s, half of it for the store. This is the limit on any machine.
	stormPatience = 10 * time.Second
)

var storeStep = regexp.MustCompile(`(?m)^\s*store\s+(\S+)`)

// TestStartAfterAStorm kills the process in the middle of a storm of writes, and measures the next start.
func TestStartAfterAStorm(t *testing.T) {
	h := host.New(t)
	h.Run("start")
	for round := range stormRounds {
		began := time.Now()
		acknowledged := storm(t, h, round)
		wrote := time.Since(began)
		began = time.Now()
		out := h.Run("start")
		took := time.Since(began)
		step := storeStep.FindStringSubmatch(out)
		require.NotNil(t, step, out)
		t.Logf("round %d: %d writes in %s; start %s, of it the store %s", round, acknowledged, wrote.Round(time.Millisecond),
			took.Round(time.Millisecond), step[1])
		require.Less(t, took, stormPatience, out)
		list, err := connect(t, h).CoreV1().ConfigMaps(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{
			LabelSelector: "storm",
		})
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(list.Items)*writesEach, acknowledged)
	}
}

// writesEach is how often each object is written: created, then updated.
const writesEach = 10

// storm writes until the process is killed, and returns the number of acknowledged writes.
func storm(t *testing.T, h *host.Host, round int) int {
	t.Helper()
	api := connect(t, h).CoreV1().ConfigMaps(metav1.NamespaceDefault)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var acknowledged atomic.Int64
	enough := make(chan struct{})
	var wg sync.WaitGroup
	for w := range stormWriters {
		wg.Go(func() {
			for i := 0; ; i++ {
				m := &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{
						Name: fmt.Sprintf("storm-%d-%d-%d", round, w, i/writesEach), Labels: map[string]string{"storm": "yes"},
					},
					Data: map[string]string{"value": strings.Repeat("x", 2000), "count": fmt.Sprint(i)},
				}
				var err error
				if i%writesEach == 0 {
					_, err = api.Create(ctx, m, metav1.CreateOptions{})
				} else {
					_, err = api.Update(ctx, m, metav1.UpdateOptions{})
				}
				if err != nil {
					return // the process was killed
				}
				if acknowledged.Add(1) == stormWrites {
					close(enough)
				}
			}
		})
	}
	<-enough
	h.Kill()
	wg.Wait()
	return int(acknowledged.Load())
}
