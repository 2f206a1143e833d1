package controller

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/pull"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/readable"
	"github.com/coracle-dev/coracle/pkg/systems/kontrol/target"
)

// seenInterval is how often lastSeen is written while a cluster answers.
const seenInterval = 5 * time.Minute

func newClusters(pool *target.Pool, local client.WithWatch, tunnels *pull.Hub,
	namespaces readable.Namespaces) *engine.Reconciler {
	return &engine.Reconciler{
		Name: "kontrolcluster", Account: "cluster-controller", When: &kontrol.Cluster{},
		Watches: []engine.Watch{
			{Object: &kontrol.Cluster{}, Changed: engine.SpecChanged},
			{Object: &corev1.Secret{}, Map: clustersWithSecret},
		},
		Writes: []engine.Write{{Object: &kontrol.Cluster{}, Parts: []engine.Part{engine.Status}}},
		New: func(env engine.Env) engine.Func {
			c := &clusters{env, pool, local, tunnels, namespaces}
			if tunnels != nil {
				env.Go(func(ctx context.Context) {
					tunnels.Use(ctx, func(name string) {
						if t := pool.Get(name); t != nil {
							t.Probe()
						}
					})
				})
			}
			pool.Notify("cluster", func(name string) { env.Enqueue(engine.RequestFor("", name), 0) })
			return c.reconcile
		},
	}
}

func clustersWithSecret(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	var all kontrol.ClusterList
	if env.Cache.List(ctx, &all) != nil {
		return nil
	}
	return engine.Requests(all.Items, func(c *kontrol.Cluster) bool {
		s := c.Spec.KubeconfigSecret
		return s != nil && s.Name == o.GetName() && s.Namespace == o.GetNamespace()
	})
}

type clusters struct {
	engine.Env
	pool  *target.Pool
	local client.WithWatch

	tunnels    *pull.Hub
	namespaces readable.Namespaces
}

func (r *clusters) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	c, err := engine.Find[kontrol.Cluster](ctx, r.Cache, "", req.Name)
	if err != nil {
		return engine.Result{}, err
	}
	if c == nil || c.DeletionTimestamp != nil {
		r.pool.Remove(req.Name)
		return engine.Result{}, nil
	}
	c = c.DeepCopy()
	kontrol.DefaultCluster(c)
	cfg, err := r.config(ctx, c)
	if err != nil {
		return engine.Result{}, err
	}
	r.pool.Set(c.Name, cfg, r.Go)
	t := r.pool.Get(c.Name)
	if t == nil {
		return engine.Result{}, nil
	}
	next := c.DeepCopy()
	again := clusterStatus(&next.Status, c.Generation, t.Status(), r.Now())
	if !equality.Semantic.DeepEqual(next.Status, c.Status) {
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
		tellCluster(r.Events, c, &next.Status)
	}
	return engine.Result{RequeueAfter: again}, nil
}

// config returns how to connect to a cluster, or the reason and problem if that is unknown.
func (r *clusters) config(ctx context.Context, c *kontrol.Cluster) (target.Config, error) {
	if errs := kontrol.ValidateCluster(c); len(errs) > 0 { // a CustomResourceDefinition does not check everything
		return target.Config{Reason: kontrol.ReasonKubeconfigInvalid, Problem: errs.ToAggregate().Error()}, nil
	}
	if c.Spec.Local {
		return target.Config{Local: r.local}, nil
	}
	if c.Spec.Pull && r.tunnels == nil {
		return target.Config{
			Reason: kontrol.ReasonUnreachable,
			Problem: "agents connect to the API servers of Coracle alone, not to an operator outside: give the Cluster a " +
				"kubeconfigSecret, or run the hub as `coracle server --no-node`",
		}, nil
	}
	if c.Spec.Pull {
		return target.Config{Pull: r.tunnels.Transport(c.Name)}, nil
	}
	ref := c.Spec.KubeconfigSecret
	if ref == nil { // cannot happen after validation
		return target.Config{Reason: kontrol.ReasonSecretMissing, Problem: "no kubeconfig is set"}, nil
	}
	if err := r.namespaces.Check("Secret", ref.Namespace, ref.Name); err != nil {
		return target.Config{Reason: kontrol.ReasonSecretMissing, Problem: err.Error()}, nil
	}
	var s corev1.Secret
	err := r.Cache.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &s)
	if apierrors.IsNotFound(err) {
		return target.Config{Reason: kontrol.ReasonSecretMissing,
			Problem: fmt.Sprintf("there is no Secret %s in namespace %s: create it with a kubeconfig under the key %s", ref.Name,
				ref.Namespace, ref.Key)}, nil
	}
	if err != nil {
		return target.Config{}, err
	}
	data, ok := s.Data[ref.Key]
	if !ok {
		return target.Config{Reason: kontrol.ReasonSecretMissing,
			Problem: fmt.Sprintf("Secret %s in namespace %s has no key %s: add a kubeconfig under it", ref.Name, ref.Namespace,
				ref.Key)}, nil
	}
	return target.Config{Kubeconfig: data}, nil
}

// clusterStatus sets the status from the connection's state. It returns when to compute it again; 0 for not before
// a change.
func clusterStatus(s *kontrol.ClusterStatus, generation int64, known target.Status,
	now time.Time) (again time.Duration) {
	s.ObservedGeneration = generation
	if known.Version != "" {
		s.Version = known.Version
	}
	s.Server = known.Server
	c := metav1.Condition{
		Type:    kontrol.ConditionReady,
		Status:  metav1.ConditionFalse,
		Reason:  known.Reason,
		Message: known.Message,
	}
	if known.Ready {
		c.Status = metav1.ConditionTrue
	}
	// Keep the old message of a continuing failure: new ones differ only in details such as ports, and cost a
	// write each.
	if old := meta.FindStatusCondition(s.Conditions, c.Type); old != nil && old.Status == c.Status &&
		old.Reason == c.Reason && !known.Ready && old.Reason == kontrol.ReasonUnreachable {
		c.Message = old.Message
	}
	changed := meta.SetStatusCondition(&s.Conditions, c)
	if known.Seen.IsZero() {
		return 0
	}
	if s.LastSeen == nil || changed && known.Seen.After(s.LastSeen.Time) ||
		known.Ready && now.Sub(s.LastSeen.Time) >= seenInterval {
		s.LastSeen = new(metav1.NewTime(known.Seen))
	}
	if known.Ready {
		return seenInterval
	}
	return 0
}
