package devicetaint

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// statusPeriod is the shortest time between two evaluations of a rule with the same spec, because pods and claims
// may change at any rate. Upstream limits writes of the status in the same way.
const statusPeriod = 10 * time.Second

// NewStatus declares the reconciler that writes the status of rules.
func NewStatus() *engine.Reconciler {
	return &engine.Reconciler{
		Name: "device-taint-rule", Account: account, Workers: 1, When: &resourcev1.DeviceTaintRule{},
		Watches: []engine.Watch{
			{
				Object:  &resourcev1.DeviceTaintRule{},
				Changed: func(was, is client.Object) bool { return was.GetGeneration() != is.GetGeneration() },
			},
			{Object: &corev1.Pod{}, Event: rulesOfPod},
			{Object: &resourcev1.ResourceClaim{}, Event: rulesOfClaim},
		},
		Reads:   []client.Object{&resourcev1.ResourceSlice{}},
		Writes:  []engine.Write{{Object: &resourcev1.DeviceTaintRule{}, Parts: []engine.Part{engine.Status}}},
		Indexes: indexes(),
		New:     func(env engine.Env) engine.Func { return (&rules{Env: env, looked: map[string]look{}}).reconcile },
	}
}

// rulesOfPod maps a pod with claims to all rules that evict, when it is bound or terminates.
func rulesOfPod(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	old, _ := was.(*corev1.Pod)
	p, _ := is.(*corev1.Pod)
	matters := func(p *corev1.Pod) bool {
		return p != nil && len(p.Spec.ResourceClaims) > 0 && p.Spec.NodeName != "" && p.DeletionTimestamp == nil
	}
	if matters(old) == matters(p) {
		return nil
	}
	return evicting(ctx, env, func(*resourcev1.DeviceTaintRule) bool { return true })
}

// rulesOfClaim maps a claim whose allocation or users changed to the rules that evict from its devices.
func rulesOfClaim(ctx context.Context, env engine.Env, was, is client.Object) []engine.Request {
	old, _ := was.(*resourcev1.ResourceClaim)
	c, _ := is.(*resourcev1.ResourceClaim)
	if old != nil && c != nil && len(old.Status.ReservedFor) == len(c.Status.ReservedFor) &&
		(old.Status.Allocation == nil) == (c.Status.Allocation == nil) {
		return nil
	}
	return evicting(ctx, env, func(r *resourcev1.DeviceTaintRule) bool {
		return old != nil && uses(old, r) > 0 || c != nil && uses(c, r) > 0
	})
}

func evicting(ctx context.Context, env engine.Env,
	which func(*resourcev1.DeviceTaintRule) bool) (out []engine.Request) {
	var list resourcev1.DeviceTaintRuleList
	if err := env.Cache.List(ctx, &list); err != nil {
		env.Log.Warn("could not list device taint rules", "error", err)
		return nil
	}
	for i := range list.Items {
		if r := &list.Items[i]; r.Spec.Taint.Effect == resourcev1.DeviceTaintEffectNoExecute && which(r) {
			out = append(out, engine.RequestFor("", r.Name))
		}
	}
	return out
}

type rules struct {
	engine.Env
	// looked records the last evaluation of each existing rule, by name. Only the single worker uses it.
	looked map[string]look
}

type look struct {
	uid        types.UID
	generation int64
	at         time.Time
}

func (r *rules) reconcile(ctx context.Context, req engine.Request) (engine.Result, error) {
	var rule resourcev1.DeviceTaintRule
	if err := r.Cache.Get(ctx, req.NamespacedName, &rule); err != nil {
		if apierrors.IsNotFound(err) {
			delete(r.looked, req.Name)
		}
		return engine.Result{}, client.IgnoreNotFound(err)
	}
	now := r.Now()
	this := look{rule.UID, rule.Generation, now}
	if was := r.looked[req.Name]; was.uid == this.uid && was.generation == this.generation &&
		now.Before(was.at.Add(statusPeriod)) {
		return engine.Result{RequeueAfter: was.at.Add(statusPeriod).Sub(now)}, nil
	}
	effects, err := r.effects(ctx, &rule, now)
	if err != nil {
		return engine.Result{}, err
	}
	if condition, changed := Condition(&rule, effects, now); changed {
		next := rule.DeepCopy()
		next.Status.Conditions = append(slices.DeleteFunc(next.Status.Conditions, func(c metav1.Condition) bool {
			return c.Type == condition.Type
		}), condition)
		if err := r.Client.Status().Update(ctx, next); err != nil {
			return engine.Result{}, client.IgnoreNotFound(err)
		}
	}
	r.looked[req.Name] = this
	return engine.Result{}, nil
}

// claims lists the claims that a rule may affect: the claims of its pool if it names driver and pool, otherwise all.
func (r *rules) claims(ctx context.Context,
	rule *resourcev1.DeviceTaintRule) (list resourcev1.ResourceClaimList, err error) {
	switch s := rule.Spec.DeviceSelector; {
	case s == nil: // it selects nothing
	case s.Driver != nil && s.Pool != nil:
		err = r.ByIndex(ctx, &list, "", poolIndex, poolKey(*s.Driver, *s.Pool))
	default:
		err = r.Cache.List(ctx, &list)
	}
	return list, err
}

// effects counts what a rule does, or would do if it evicted. Its cost is proportional to the number of these
// claims and of devices.
func (r *rules) effects(ctx context.Context, rule *resourcev1.DeviceTaintRule, now time.Time) (e Effects, err error) {
	effect := rule.Spec.Taint.Effect
	if effect != resourcev1.DeviceTaintEffectNoExecute && effect != resourcev1.DeviceTaintEffectNone {
		return e, nil
	}
	evicts := rule.DeepCopy()
	evicts.Spec.Taint.Effect = resourcev1.DeviceTaintEffectNoExecute
	in, err := inventory(ctx, r.Env)
	if err != nil {
		return e, err
	}
	in.Rules = []*resourcev1.DeviceTaintRule{evicts}
	claims, err := r.claims(ctx, rule)
	if err != nil {
		return e, err
	}
	seen, namespaces := map[engine.Request]bool{}, map[string]bool{}
	for i := range claims.Items {
		n := uses(&claims.Items[i], rule)
		e.Allocated += n
		if n == 0 {
			continue
		}
		for _, user := range users(&claims.Items[i]) {
			if seen[user] {
				continue
			}
			seen[user] = true
			leaves, err := r.leaves(ctx, user, in, rule, now)
			if err != nil {
				return e, err
			}
			if leaves {
				e.Pods++
				namespaces[user.Namespace] = true
			}
		}
	}
	e.Namespaces = len(namespaces)
	if effect == resourcev1.DeviceTaintEffectNone {
		e.Published, err = r.published(ctx, rule)
	}
	return e, err
}

// leaves reports whether a rule evicts a pod, now or later.
func (r *rules) leaves(ctx context.Context, pod engine.Request, in Inventory, rule *resourcev1.DeviceTaintRule,
	now time.Time) (bool, error) {
	var p corev1.Pod
	if err := r.Cache.Get(ctx, pod.NamespacedName, &p); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	claims, err := claimsOf(ctx, r.Env, &p)
	if err != nil {
		return false, err
	}
	eviction := Plan(&p, claims, in, now)
	return eviction != nil && slices.Contains(eviction.Rules, rule.UID), nil
}

// published counts the devices that a rule selects in the newest generation of each pool.
func (r *rules) published(ctx context.Context, rule *resourcev1.DeviceTaintRule) (n int, err error) {
	var list resourcev1.ResourceSliceList
	if err := r.Cache.List(ctx, &list); err != nil {
		return 0, err
	}
	newest := map[string]int64{}
	for i := range list.Items {
		s := &list.Items[i].Spec
		key := poolKey(s.Driver, s.Pool.Name)
		newest[key] = max(newest[key], s.Pool.Generation)
	}
	for i := range list.Items {
		s := &list.Items[i].Spec
		if s.Pool.Generation != newest[poolKey(s.Driver, s.Pool.Name)] {
			continue
		}
		for _, d := range s.Devices {
			if Selects(rule, s.Driver, s.Pool.Name, d.Name) {
				n++
			}
		}
	}
	return n, nil
}
