package garbage

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/aggregated"
)

// local is the API server, with ConfigMaps.
type local struct {
	client.Client
	patched []string
}

func (l *local) Stored() ([]engine.Kind, <-chan struct{}) {
	return []engine.Kind{
		{GroupVersionKind: anOwner.GroupVersionKind, Namespaced: true, Deletable: true},
	}, make(chan struct{})
}

func (l *local) Patch(_ context.Context, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	data, err := patch.Data(o)
	l.patched = append(l.patched, string(data))
	return err
}

// An owner keeps its finalizer until the dependents of unwatched kinds have lost their reference to it.
func TestDependentsOfUnfollowedKindsAreOrphaned(t *testing.T) {
	s := newServer(func(n int) *metav1.PartialObjectMetadataList {
		if n%2 == 0 {
			return pageOf("second", someFlunder("one", "cm"), someFlunder("two", "another"))
		}
		return pageOf("", someFlunder("three", "cm"))
	})
	f := follow(t, s, limits{2, 1 << 20})
	eventually(t, f.isOver, "they are too many")
	api := &local{}
	r := &reconciler{Env: engine.Env{Client: api}, g: f.g, known: known{kinds: api}, others: f.others}
	owner := metadata(anOwner.GroupVersionKind)
	owner.Namespace, owner.Name, owner.UID, owner.ResourceVersion, owner.Finalizers = "a", "cm", "cm", "5", []string{
		metav1.FinalizerOrphanDependents,
	}

	s.refuses = errors.New("broken")
	require.ErrorContains(t, r.orphan(t.Context(), owner, nil),
		"could not remove the owner from the owner references of all flunders.wardle.example.com: broken")
	require.Empty(t, api.patched)
	for range maxLists {
		f.unfollowed()[flunders].lists <- struct{}{}
	}
	require.True(t, apierrors.IsConflict(r.orphan(t.Context(), owner, nil)), "no worker waits for other readers")
	for range maxLists {
		<-f.unfollowed()[flunders].lists
	}
	require.Empty(t, api.patched)

	s.refuses = nil
	s.mu.Lock()
	s.asked = nil
	s.mu.Unlock()
	require.NoError(t, r.orphan(t.Context(), owner, nil))
	require.Equal(t, map[string]string{
		"a/one":   `{"metadata":{"ownerReferences":[],"resourceVersion":"1","uid":"uid-one"}}`,
		"a/three": `{"metadata":{"ownerReferences":[],"resourceVersion":"1","uid":"uid-three"}}`,
	}, s.patched)
	require.Equal(t, []string{`{"metadata":{"finalizers":[],"resourceVersion":"5","uid":"cm"}}`}, api.patched)
	require.Empty(t, f.unfollowed()[flunders].lists)
}

// For an owner with a namespace, cluster-scoped kinds are not read.
func TestOnlyWhatAnOwnerMayOwnIsRead(t *testing.T) {
	s := newServer(func(int) *metav1.PartialObjectMetadataList { return pageOf("more", someFlunder("one", "")) })
	wide := flunders
	wide.Namespaced = false
	s.kinds = []aggregated.Remote{wide}
	f := follow(t, s, limits{2, 1 << 20})
	over := func() bool { f.others.mu.Lock(); defer f.others.mu.Unlock(); return f.over[wide] }
	eventually(t, over, "they are too many")
	asked := len(s.asked)
	owner := metadata(schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"})
	owner.Namespace, owner.UID = "a", types.UID("cm")
	require.NoError(t, f.orphanUnfollowed(t.Context(), owner))
	require.Len(t, s.asked, asked)
	owner.Namespace = ""
	require.ErrorIs(t, f.orphanUnfollowed(t.Context(), owner), errTooMany)
	require.Greater(t, len(s.asked), asked)
}
