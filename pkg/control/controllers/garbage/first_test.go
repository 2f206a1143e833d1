package garbage

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var anOwner = object{schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, "a", "cm"}

// Owners in foreground or orphaning deletion wait for the first list of each kind, and are enqueued once all have
// arrived.
func TestOwnersWaitForFirstLists(t *testing.T) {
	answer := make(chan struct{})
	s := newServer(func(int) *metav1.PartialObjectMetadataList {
		<-answer
		return pageOf("", someFlunder("one", "cm"))
	})
	s.silent, s.kinds = true, nil
	f := follow(t, s, limits{10, 1 << 20})
	require.Equal(t, patience, f.early(anOwner), "which kinds there are is not known")
	s.has(flunders)
	eventually(t, func() bool { return f.of(flunders.GroupKind()) != nil }, "they are listed")
	require.Equal(t, patience, f.early(anOwner))
	require.False(t, f.has(anOwner.request()))
	close(answer)
	eventually(t, func() bool { return f.has(anOwner.request()) }, "it is looked at again")
	require.Zero(t, f.early(anOwner))
	require.Len(t, f.of(flunders.GroupKind()).owned("cm"), 1)
	s.has(flunders, fishers)
	require.Zero(t, f.early(anOwner), "only after the start")
}

// Owners wait a limited time after the start for a server that never answers.
func TestOwnersDoNotWaitForDeadServers(t *testing.T) {
	for name, silent := range map[string]bool{"unknown kinds": true, "no list": false} {
		t.Run(name, func(t *testing.T) {
			answer := make(chan struct{})
			s := newServer(func(int) *metav1.PartialObjectMetadataList { <-answer; return pageOf("") })
			s.silent = silent
			f := follow(t, s, limits{10, 1 << 20})
			t.Cleanup(func() { close(answer) })
			f.pass(patience - time.Second)
			require.Equal(t, time.Second, f.early(anOwner))
			f.pass(time.Second)
			require.Zero(t, f.early(anOwner))
			require.Zero(t, f.early(object{anOwner.GroupVersionKind, "a", "another"}))
		})
	}
}

// A kind that is not watched because it has too many objects blocks no owner.
func TestOwnersDoNotWaitForTooManyObjects(t *testing.T) {
	answer := make(chan struct{})
	s := newServer(func(int) *metav1.PartialObjectMetadataList {
		<-answer
		return pageOf("", someFlunder("one", ""), someFlunder("two", ""))
	})
	f := follow(t, s, limits{1, 1 << 20})
	require.Positive(t, f.early(anOwner))
	close(answer)
	eventually(t, func() bool { return f.has(anOwner.request()) }, "it is looked at again")
	require.Zero(t, f.early(anOwner))
}
