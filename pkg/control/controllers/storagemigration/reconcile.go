// Package storagemigration rewrites the objects of a resource in the current storage version (StorageVersionMigration,
// KEP-4192). It then corrects the stored versions in the status of the resource's definition. Its invariant: a
// migration succeeds only after every object that was stored before its start has been rewritten, or changed or deleted
// by another client. Progress is not saved across restarts, because rewriting an object again is harmless.
package storagemigration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

const (
	// slice is how long one call migrates objects. It then reports progress and lets other migrations run.
	slice = time.Second
	// patience is upstream's time that a migration waits after its creation for its resource to be served.
	patience = time.Minute
)

// New declares the reconciler. kinds are the kinds that can be migrated.
func New(kinds engine.Kinds) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "storage-version-migrator", Workers: 1,
		Watches: []engine.Watch{
			{Object: &storagemigrationv1.StorageVersionMigration{}, Event: related},
			{Object: definitionMetadata(), Map: ofDefinition}, // names suffice, and definitions are large
		},
		// No kind is watched, but all may be read.
		Every: &engine.Every{Kinds: kinds, Object: func(engine.Kind) client.Object { return nil }},
		Writes: []engine.Write{
			{Object: &storagemigrationv1.StorageVersionMigration{}, Parts: []engine.Part{engine.Status}},
			{Object: &apiextensionsv1.CustomResourceDefinition{}, Parts: []engine.Part{engine.Status}},
		},
		New: func(env engine.Env) engine.Func {
			return (&reconciler{env, kinds, map[string]position{}}).reconcile
		},
	}
}

// related maps a migration to itself. An ended or deleted one maps to all migrations of its resource.
func related(ctx context.Context, env engine.Env, was, now client.Object) []engine.Request {
	m, ok := cmp.Or(now, was).(*storagemigrationv1.StorageVersionMigration)
	if !ok {
		return nil
	}
	if now == nil || ended(m) {
		return ofResource(ctx, env, m.Spec.Resource)
	}
	return []engine.Request{engine.RequestFor("", m.Name)}
}

func definitionMetadata() *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	return m
}

func ofDefinition(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	plural, group, _ := strings.Cut(o.GetName(), ".")
	return ofResource(ctx, env, metav1.GroupResource{Group: group, Resource: plural})
}

func ofResource(ctx context.Context, env engine.Env, resource metav1.GroupResource) []engine.Request {
	var list storagemigrationv1.StorageVersionMigrationList
	if err := env.Cache.List(ctx, &list); err != nil {
		env.Log.Warn("could not list storage version migrations", "error", err)
		return nil
	}
	var out []engine.Request
	for i := range list.Items {
		if m := &list.Items[i]; m.Spec.Resource == resource {
			out = append(out, engine.RequestFor("", m.Name))
		}
	}
	return out
}

type reconciler struct {
	engine.Env
	kinds     engine.Kinds
	positions map[string]position // of running migrations, by name
}

// position is the last object that a migration has rewritten. It is lost when the process ends.
type position struct {
	of   types.UID
	last client.ObjectKey
}

func (r *reconciler) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var list storagemigrationv1.StorageVersionMigrationList
	if err := r.Cache.List(ctx, &list); err != nil {
		return engine.Result{}, err
	}
	i := slices.IndexFunc(list.Items, func(m storagemigrationv1.StorageVersionMigration) bool {
		return m.Name == req.Name
	})
	if i < 0 {
		delete(r.positions, req.Name)
		return engine.Result{}, nil
	}
	m := list.Items[i].DeepCopy()
	switch Plan(m, list.Items) {
	case Start:
		return r.start(ctx, m)
	case Migrate:
		return r.migrate(ctx, m)
	case Finish:
		return engine.Result{}, r.finish(ctx, m)
	}
	return engine.Result{}, nil
}

func (r *reconciler) start(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) (engine.Result, error) {
	if err := r.define(ctx, m,
		func(crd *apiextensionsv1.CustomResourceDefinition) apiextensionsv1.CustomResourceDefinitionStatus {
			return begun(crd, m.Name)
		}); err != nil {
		return engine.Result{}, err
	}
	set(m, storagemigrationv1.MigrationRunning, metav1.ConditionTrue, running, progress(0, 0, nil))
	if err := r.Client.Status().Update(ctx, m); err != nil {
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	return r.migrate(ctx, m)
}

// migrate rewrites objects that were stored before the migration began, for the duration of a slice.
func (r *reconciler) migrate(ctx context.Context,
	m *storagemigrationv1.StorageVersionMigration) (engine.Result, error) {
	kind, found := r.find(m.Spec.Resource)
	if !found {
		if left := m.CreationTimestamp.Add(patience).Sub(r.Now()); left > 0 {
			return engine.Result{RequeueAfter: min(left, patience/10)}, nil
		}
		return engine.Result{}, r.fail(ctx, m, "resource does not exist in discovery")
	}
	if known, err := r.knowsVersion(ctx, m, kind); err != nil || !known {
		return engine.Result{RequeueAfter: 200 * time.Millisecond}, err
	}
	if m.Status.ResourceVersion == "" {
		m.Status.ResourceVersion = m.ResourceVersion // of the write that began the migration
		if err := r.Client.Status().Update(ctx, m); err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
	}
	todo, total, err := r.candidates(ctx, kind, m.Status.ResourceVersion)
	if err != nil {
		return engine.Result{}, err
	}
	if at := r.positions[m.Name]; at.of == m.UID {
		todo = slices.DeleteFunc(todo, func(o metav1.PartialObjectMetadata) bool {
			return compareKeys(client.ObjectKeyFromObject(&o), at.last) <= 0
		})
	}
	until := r.Now().Add(slice)
	for i := range todo {
		if ctx.Err() != nil {
			return engine.Result{}, ctx.Err()
		}
		if i > 0 && r.Now().After(until) {
			return engine.Result{RequeueAfter: time.Millisecond}, r.report(ctx, m, len(todo)-i, total, nil)
		}
		switch err := r.rewrite(ctx, kind, &todo[i]); {
		case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err): // changed or deleted since
		case transient(err):
			return engine.Result{}, errors.Join(err, r.report(ctx, m, len(todo)-i, total, err))
		default:
			return engine.Result{}, r.fail(ctx, m,
				fmt.Sprintf("%d/%d not yet migrated. migration encountered unhandled error: %s", len(todo)-i, total, err))
		}
		r.positions[m.Name] = position{m.UID, client.ObjectKeyFromObject(&todo[i])}
	}
	set(m, storagemigrationv1.MigrationRunning, metav1.ConditionTrue, running, progress(0, total, nil))
	set(m, storagemigrationv1.MigrationSucceeded, metav1.ConditionTrue, succeeded, "Migration completed")
	return engine.Result{}, r.end(ctx, m)
}

func (r *reconciler) find(resource metav1.GroupResource) (engine.Kind, bool) {
	all, _ := r.kinds.Stored()
	i := slices.IndexFunc(all, func(k engine.Kind) bool {
		return k.Group == resource.Group && k.Resource == resource.Resource
	})
	if i < 0 {
		return engine.Kind{}, false
	}
	return all[i], true
}

// knowsVersion reports whether the API server writes objects in the storage version of the resource's definition.
// A change of the definition takes effect with a delay.
func (r *reconciler) knowsVersion(ctx context.Context, m *storagemigrationv1.StorageVersionMigration,
	k engine.Kind) (bool, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := r.Cache.Get(ctx, client.ObjectKey{
		Name: m.Spec.Resource.Resource + "." + m.Spec.Resource.Group,
	}, &crd); err != nil {
		return true, client.IgnoreNotFound(err)
	}
	return k.Stored == "" ||
		slices.ContainsFunc(crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
			return v.Storage && v.Name == k.Stored
		}), nil
}

// candidates returns the objects that were stored at a resource version, sorted, and the number of all objects.
func (r *reconciler) candidates(ctx context.Context, k engine.Kind,
	version string) (todo []metav1.PartialObjectMetadata, total int, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(k.GroupVersion().WithKind(k.Kind + "List"))
	if err := r.Cache.List(ctx, list); err != nil {
		return nil, 0, err
	}
	for _, o := range list.Items {
		if later, err := resourceversion.CompareResourceVersion(o.ResourceVersion, version); err == nil && later > 0 {
			continue
		}
		todo = append(todo, o)
	}
	slices.SortFunc(todo, func(a, b metav1.PartialObjectMetadata) int {
		return compareKeys(client.ObjectKeyFromObject(&a), client.ObjectKeyFromObject(&b))
	})
	return todo, len(list.Items), nil
}

func compareKeys(a, b client.ObjectKey) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// rewrite makes the API server store an unchanged object again. It conflicts if the object has changed.
func (r *reconciler) rewrite(ctx context.Context, k engine.Kind, o *metav1.PartialObjectMetadata) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": k.GroupVersion().String(),
		"kind":       k.Kind,
		"metadata":   map[string]any{"resourceVersion": o.ResourceVersion},
	})
	if err != nil {
		return err
	}
	target := k.Metadata()
	target.Namespace, target.Name = o.Namespace, o.Name
	return r.Client.Patch(ctx, target, client.RawPatch(types.MergePatchType, body),
		client.FieldOwner("storage-version-migrator-controller"))
}

// transient reports whether upstream would retry a failed write.
func transient(err error) bool {
	return utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsProbableEOF(err) ||
		apierrors.IsServerTimeout(err) ||
		apierrors.IsTooManyRequests(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || errors.Is(err,
		context.DeadlineExceeded)
}

func (r *reconciler) report(ctx context.Context, m *storagemigrationv1.StorageVersionMigration, left, total int,
	err error) error {
	if !set(m, storagemigrationv1.MigrationRunning, metav1.ConditionTrue, running, progress(left, total, err)) {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Status().Update(ctx, m))
}

func (r *reconciler) fail(ctx context.Context, m *storagemigrationv1.StorageVersionMigration, message string) error {
	set(m, storagemigrationv1.MigrationFailed, metav1.ConditionTrue, failed, message)
	return r.end(ctx, m)
}

// end writes the outcome, and then the definition's status. After a restart in between, Plan returns Finish.
func (r *reconciler) end(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) error {
	delete(r.positions, m.Name)
	if err := r.Client.Status().Update(ctx, m); err != nil {
		return client.IgnoreNotFound(err)
	}
	return r.finish(ctx, m)
}

func (r *reconciler) finish(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) error {
	success := is(m, storagemigrationv1.MigrationSucceeded)
	if err := r.define(ctx, m,
		func(crd *apiextensionsv1.CustomResourceDefinition) apiextensionsv1.CustomResourceDefinitionStatus {
			return done(crd, success)
		}); err != nil {
		return err
	}
	set(m, storagemigrationv1.MigrationRunning, metav1.ConditionFalse, completed, "Migration completed")
	return client.IgnoreNotFound(r.Client.Status().Update(ctx, m))
}

// define changes the status of the resource's definition, if there is one. It conflicts if the definition has
// changed since it was read.
func (r *reconciler) define(ctx context.Context, m *storagemigrationv1.StorageVersionMigration,
	next func(*apiextensionsv1.CustomResourceDefinition) apiextensionsv1.CustomResourceDefinitionStatus) error {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := r.Cache.Get(ctx, client.ObjectKey{
		Name: m.Spec.Resource.Resource + "." + m.Spec.Resource.Group,
	}, &crd); err != nil {
		return client.IgnoreNotFound(err)
	}
	status := next(&crd)
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": crd.ResourceVersion},
		"status": map[string]any{"conditions": status.Conditions, "storedVersions": status.StoredVersions}})
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(r.Client.Status().Patch(ctx, crd.DeepCopy(), client.RawPatch(types.MergePatchType, body)))
}
