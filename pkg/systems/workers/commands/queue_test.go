package commands

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// TestQueueOfDeadLetters checks what the commands say about dead letters: why a message is there, that a dead one does
// not expire, and where the messages are that a redrive did not find.
func TestQueueOfDeadLetters(t *testing.T) {
	var answer any
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = command.PrintAs(w, "json", answer)
	}))
	defer server.Close()
	scheme, err := command.Scheme()
	require.NoError(t, err)
	w := &workers.Worker{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders"}}
	w.Spec.Delivery.DeadLetter = "failed"
	c := cluster{&command.Cluster{
		Namespace: "shop", REST: &rest.Config{Host: server.URL},
		Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(w).Build(),
	}}
	queue := func(worker, verb string) string {
		var out strings.Builder
		require.NoError(t, c.Queue(t.Context(), QueueOptions{Worker: worker, Verb: verb, ID: "7"}, &out))
		return out.String()
	}
	dead := workers.QueuedMessage{ID: "7", State: "dead", Error: "no program", DeadLetter: "bad\norder"}
	waiting := dead
	waiting.State, waiting.Error, waiting.Expires = "waiting", "", new(metav1.NewTime(time.Now()))
	answer = workers.QueuedMessages{Items: []workers.QueuedMessage{dead, waiting}}
	list := queue("failed", "list")
	require.Contains(t, list, "dead letter: bad order; here: no program\n")
	require.Contains(t, list, "dead letter: bad order\n")
	answer = dead
	require.Contains(t, queue("failed", "show"), "\nExpires:      never: kept until it is redriven or purged\n")
	answer = waiting
	require.Contains(t, queue("failed", "show"), "\nExpires:      "+waiting.Expires.Format("2006"))

	answer = workers.QueueChange{}
	require.Equal(t, "no dead messages in the queue of worker orders, whose failed messages go to worker failed: "+
		"`coracle queue failed list -n shop` lists what is there\n", queue("orders", "redrive"))
	require.Equal(t, "no dead messages in the queue of worker failed: `coracle queue failed list -n shop` lists what is "+
		"there\n", queue("failed", "redrive"))
	require.Equal(t, "0 messages removed from the queue of worker orders\n", queue("orders", "purge"))
	answer = workers.QueueChange{Messages: 2}
	require.Equal(t, "2 messages delivered again in the queue of worker orders\n", queue("orders", "redrive"))
}
