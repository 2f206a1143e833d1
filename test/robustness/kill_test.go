package robustness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/coracle-dev/coracle/test/host"
)

const (
	rounds  = 10
	writers = 8
)

// TestNoAcknowledgedWriteIsLost kills the process at a random moment while writers create, update and delete, and
// compares the objects of the next process with the acknowledged writes. A write without a response may or may not
// have happened.
func TestNoAcknowledgedWriteIsLost(t *testing.T) {
	h := host.New(t)
	h.Run("start")
	states := make([]state, writers)
	for round := range rounds {
		api := connect(t, h)
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for w := range writers {
			wg.Add(1)
			go func() {
				defer wg.Done()
				states[w].write(ctx, api, fmt.Sprintf("r%d-w%d", round, w))
			}()
		}
		// Kill at a random moment in the first half second of writes.
		after := time.NewTimer(time.Duration(rand.IntN(500)) * time.Millisecond)
		<-after.C
		h.Kill()
		stop()
		wg.Wait()
		h.Run("start")
		check(t, connect(t, h), states)
	}
	total := 0
	for _, s := range states {
		total += s.acknowledged
	}
	t.Logf("%d acknowledged writes over %d kills", total, rounds)
	require.Positive(t, total)
}

// state is the knowledge of one writer: the values of its objects, and the objects whose last write got no response.
type state struct {
	have         map[string]string
	unknown      map[string]bool
	acknowledged int
}

func (s *state) write(ctx context.Context, api kubernetes.Interface, prefix string) {
	if s.have == nil {
		s.have, s.unknown = map[string]string{}, map[string]bool{}
	}
	maps := api.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("%s-%d", prefix, i)
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"v": "created"}}
		steps := []func() error{
			func() error { _, err := maps.Create(ctx, object, metav1.CreateOptions{}); return err },
			func() error {
				object.Data["v"] = "updated"
				_, err := maps.Update(ctx, object, metav1.UpdateOptions{})
				return err
			},
			func() error { return maps.Delete(ctx, name, metav1.DeleteOptions{}) },
		}
		// Objects end created, updated or deleted, in turn.
		for step, do := range steps[:1+i%3] {
			if err := do(); err != nil {
				s.unknown[name] = true
				return // the process was killed
			}
			s.acknowledged++
			s.have[name] = []string{"created", "updated", ""}[step]
		}
	}
}

func check(t *testing.T, api kubernetes.Interface, states []state) {
	t.Helper()
	list, err := api.CoreV1().ConfigMaps(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	found := map[string]string{}
	for _, m := range list.Items {
		found[m.Name] = m.Data["v"]
	}
	for _, s := range states {
		for name, want := range s.have {
			if !s.unknown[name] {
				require.Equal(t, want, found[name], name)
			}
		}
	}
}

func connect(t *testing.T, h *host.Host) kubernetes.Interface {
	t.Helper()
	api, err := kubernetes.NewForConfig(h.REST())
	require.NoError(t, err)
	return api
}
