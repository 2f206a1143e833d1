package customresources

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/client"
	"github.com/coracle-dev/coracle/pkg/control/controllers/storagemigration"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/engine/kinds"
)

// A migration rewrites objects in the storage version, after which the old version can be removed from the
// definition. An interrupted migration continues. A migration of an unknown resource fails.
func TestStorageVersionMigration(t *testing.T) {
	w := newWorld(t, t.TempDir())
	w.define(boats)
	const count = 20
	for i := range count {
		made := w.do("POST", boatsPath("v1", ""), boat("v1", fmt.Sprintf("b%d", i), `{}`))
		require.Equal(t, http.StatusCreated, made.code, made.body)
	}
	got := patchIn(w, definitionsPath+"/boats.example.org",
		`[{"op":"replace","path":"/spec/versions/0/storage","value":false},{"op":"replace","path":"/spec/versions/1/storage","value":true}]`, types.JSONPatchType)
	require.Equal(t, http.StatusOK, got.code, got.body)

	migration := func(name, resource string) *storagemigrationv1.StorageVersionMigration {
		m := &storagemigrationv1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name}}
		m.Spec.Resource = metav1.GroupResource{Group: "example.org", Resource: resource}
		require.NoError(t, w.client.Create(t.Context(), m))
		return m
	}
	// The status of a migration whose process was killed.
	m := migration("boats", "boats")
	m.Status.Conditions = []metav1.Condition{
		{Type: "Running", Status: metav1.ConditionTrue, Reason: "MigrationRunning", LastTransitionTime: metav1.Now()},
	}
	require.NoError(t, w.client.Status().Update(t.Context(), m))
	missing := migration("missing", "ships")

	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- engine.Run(ctx,
			engine.Config{ClientFor: func(string) client.Interface { return w.client }, Log: slog.New(slog.DiscardHandler)},
			[]*engine.Reconciler{storagemigration.New(kinds.Stored(w.kinds))}, func() {})
	}()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	is := func(m *storagemigrationv1.StorageVersionMigration, condition string) bool {
		return meta.IsStatusConditionTrue(m.Status.Conditions, condition)
	}
	require.Eventually(t, func() bool {
		return w.client.Get(t.Context(), ctrl.ObjectKeyFromObject(m), m) == nil && is(m, "Succeeded") && !is(m, "Running")
	}, 2*time.Minute, 5*time.Millisecond)
	require.NotEmpty(t, m.Status.ResourceVersion)
	for i := range count {
		require.Equal(t, "example.org/v1beta1", w.stored(fmt.Sprintf("boats/b%d", i)))
	}

	// The interrupted migration could not mark the definition. After another migration, the old version is dropped
	// from the stored versions.
	again := migration("again", "boats")
	require.Eventually(t, func() bool {
		return w.client.Get(t.Context(), ctrl.ObjectKeyFromObject(again), again) == nil && is(again, "Succeeded") &&
			!is(again, "Running")
	}, 2*time.Minute, 5*time.Millisecond)
	w.wait("boats.example.org", func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		return slices.Equal([]string{"v1beta1"}, crd.Status.StoredVersions)
	})
	got = patchIn(w, definitionsPath+"/boats.example.org", `[{"op":"remove","path":"/spec/versions/0"}]`,
		types.JSONPatchType)
	require.Equal(t, http.StatusOK, got.code, got.body)

	require.NoError(t, w.client.Get(t.Context(), ctrl.ObjectKeyFromObject(missing), missing))
	require.True(t, is(missing, "Running"), "a resource may be served soon")
	require.False(t, is(missing, "Failed"))
}
