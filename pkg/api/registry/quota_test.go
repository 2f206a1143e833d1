package registry

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
)

func quotaEnv(t testing.TB) *env {
	h := build(t)
	require.NoError(t, h.UseQuotas(nil))
	return h
}

func hard(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return l
}

// limit creates a quota and sets its status as the reconciler would.
func (h *env) limit(name string, spec corev1.ResourceQuotaSpec) {
	h.t.Helper()
	q := put(h, v1("ResourceQuota", ""), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "work"}, Spec: spec,
	})
	h.recount(q)
}

func (h *env) recount(q *corev1.ResourceQuota) {
	h.t.Helper()
	used, err := h.QuotaUsage(q)
	require.NoError(h.t, err)
	q = q.DeepCopy()
	q.Status = corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: used}
	_, err = h.Update(h.ctx, sub(v1("ResourceQuota", q.Name), "status"), q, metav1.UpdateOptions{})
	require.NoError(h.t, err)
}

func (h *env) quota(name string) *corev1.ResourceQuota {
	h.t.Helper()
	res, err := h.Get(h.ctx, v1("ResourceQuota", name), metav1.GetOptions{})
	return answer[*corev1.ResourceQuota](h.t, res, err)
}

func (h *env) used(name, what string) string {
	h.t.Helper()
	n := h.quota(name).Status.Used[corev1.ResourceName(what)]
	return n.String()
}

func (h *env) try(t Target, o runtime.Object, options ...string) error {
	t.Name = ""
	_, err := h.Create(h.ctx, t, o, metav1.CreateOptions{DryRun: options})
	return err
}

// TestAQuotaIsNeverExceeded makes fifty concurrent creates where ten are allowed, while the quota is recounted.
func TestAQuotaIsNeverExceeded(t *testing.T) {
	h := quotaEnv(t)
	h.limit("q", corev1.ResourceQuotaSpec{Hard: hard("pods", "10", "requests.cpu", "1")})
	var made, refused atomic.Int32
	var wg, counting sync.WaitGroup
	ctx, stop := context.WithCancel(h.ctx)
	counting.Go(func() {
		for ctx.Err() == nil {
			q := h.quota("q")
			used, err := h.QuotaUsage(q)
			if err != nil {
				t.Error(err)
				return
			}
			q = q.DeepCopy()
			q.Status.Used = used
			_, _ = h.Update(ctx, sub(v1("ResourceQuota", "q"), "status"), q, metav1.UpdateOptions{})
		}
	})
	for i := range 50 {
		wg.Go(func() {
			p := smallPod(fmt.Sprint("p", i))
			p.Spec.Containers[0].Resources.Requests = hard("cpu", "100m")
			switch err := h.try(v1("Pod", ""), p); {
			case err == nil:
				made.Add(1)
			default:
				refused.Add(1)
				requireStatus(t, err, 403, "exceeded quota: q")
			}
		})
	}
	wg.Wait()
	stop()
	counting.Wait()
	require.EqualValues(t, 10, made.Load())
	require.EqualValues(t, 40, refused.Load())
	h.recount(h.quota("q"))
	require.Equal(t, "10", h.used("q", "pods"))
	require.Equal(t, "1", h.used("q", "requests.cpu"))
	require.Empty(t, h.quotas.charges)
}

func TestQuotaChecks(t *testing.T) {
	h := quotaEnv(t)
	put(h, v1("Pod", ""), smallPod("before"))
	h.limit("counts", corev1.ResourceQuotaSpec{
		Hard: hard("pods", "2", "secrets", "1", "count/deployments.apps", "0", "count/configmaps", "1",
			"services", "2", "services.nodeports", "1", "resourcequotas", "2"),
	})
	require.Equal(t, "1", h.used("counts", "pods"), "what was there before counts")

	require.NoError(t, h.try(v1("Pod", ""), smallPod("dry"), metav1.DryRunAll))
	require.Equal(t, "1", h.used("counts", "pods"))
	require.NoError(t, h.try(v1("Pod", ""), smallPod("second")))
	require.Equal(t, "2", h.used("counts", "pods"))
	requireStatus(t, h.try(v1("Pod", ""), smallPod("third"), metav1.DryRunAll), 403, "exceeded quota")
	requireStatus(t, h.try(v1("Pod", ""), smallPod("third")), 403,
		`pods "third" is forbidden: exceeded quota: counts, requested: pods=1, used: pods=2, limited: pods=2`)

	require.NoError(t, h.try(v1("Secret", ""), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	requireStatus(t, h.try(v1("Secret", ""), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "b"}}), 403, "secrets=1")
	require.NoError(t, h.try(v1("ConfigMap", ""), configMap("a")))
	requireStatus(t, h.try(v1("ConfigMap", ""), configMap("b")), 403,
		"requested: count/configmaps=1, used: count/configmaps=1, limited: count/configmaps=1")

	// A service whose type changes is charged for what it adds.
	svc := put(h, v1("Service", ""), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "work"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "a", Port: 80}}}}).DeepCopy()
	svc.Spec.Type = corev1.ServiceTypeNodePort
	res, err := h.Update(h.ctx, v1("Service", "s"), svc, metav1.UpdateOptions{})
	svc = answer[*corev1.Service](t, res, err).DeepCopy()
	require.Equal(t, "1", h.used("counts", "services.nodeports"))
	svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: "b", Port: 81})
	_, err = h.Update(h.ctx, v1("Service", "s"), svc, metav1.UpdateOptions{})
	requireStatus(t, err, 403, "services.nodeports")

	// A write that fails after it was charged is corrected by the next recount.
	_, err = h.Delete(h.ctx, v1("Pod", "second"), metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	require.NoError(t, err)
	h.recount(h.quota("counts"))
	requireStatus(t, h.try(v1("Pod", ""), smallPod("before")), 409)
	require.Equal(t, "2", h.used("counts", "pods"))
	h.recount(h.quota("counts"))
	require.Equal(t, "1", h.used("counts", "pods"))
}

func TestQuotaScopes(t *testing.T) {
	h := quotaEnv(t)
	h.limit("best-effort", corev1.ResourceQuotaSpec{
		Hard: hard("pods", "1"), Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort},
	})
	h.limit("high", corev1.ResourceQuotaSpec{
		Hard: hard("pods", "1"),
		ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{
			{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{"high"}}}},
	})
	h.limit("compute", corev1.ResourceQuotaSpec{
		Hard: hard("limits.memory", "1Gi"), Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotBestEffort},
	})

	require.NoError(t, h.try(v1("Pod", ""), smallPod("a")))
	requireStatus(t, h.try(v1("Pod", ""), smallPod("b")), 403, "exceeded quota: best-effort")
	sized := func(name, class, memory string) *corev1.Pod {
		p := smallPod(name)
		p.Spec.PriorityClassName = class
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: hard("cpu", "1m"), Limits: hard()}
		if memory != "" {
			p.Spec.Containers[0].Resources.Limits = hard("memory", memory)
		}
		return p
	}
	require.NoError(t, h.try(v1("Pod", ""), sized("c", "high", "100Mi")))
	requireStatus(t, h.try(v1("Pod", ""), sized("d", "high", "100Mi")), 403, "exceeded quota: high")
	requireStatus(t, h.try(v1("Pod", ""), sized("d", "", "")), 403,
		"failed quota: compute: must specify limits.memory for: c")
	requireStatus(t, h.try(v1("Pod", ""), sized("d", "", "1Gi")), 403,
		"exceeded quota: compute, requested: limits.memory=1Gi, used: limits.memory=100Mi, limited: limits.memory=1Gi")
}

// TestLimitedResources checks that a priority class can be made to require a quota.
func TestLimitedResources(t *testing.T) {
	h := build(t)
	require.NoError(t,
		h.UseQuotas([]resourcequota.LimitedResource{
			{Resource: "pods", MatchScopes: []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{"high"}}}},
		}))
	p := smallPod("a")
	p.Spec.PriorityClassName = "high"
	require.ErrorContains(t, h.try(v1("Pod", ""), p), "insufficient quota to match these scopes")
	require.NoError(t, h.try(v1("Pod", ""), smallPod("b")))
}
