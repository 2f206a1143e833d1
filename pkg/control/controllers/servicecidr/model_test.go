package servicecidr

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine/model"
)

// TestModel: whatever happens to ranges and addresses, and wherever the process is killed, no range is removed
// that a visible address needs, each remaining range is ready, and each range that may be removed is removed.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := model.New(t, New())
		names := rapid.SampledFrom([]string{ours, "a", "b", "c"})
		cidrs := rapid.SampledFrom([]string{"10.0.0.0/28", "10.0.0.0/29", "10.0.0.8/29", "10.1.0.0/28"})
		ips := rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.9", "10.1.0.3", "10.2.0.1"})
		orphan := func(name string) bool {
			all := model.Cached[*networkingv1.ServiceCIDR](w)
			for _, a := range model.Cached[*networkingv1.IPAddress](w) {
				ip := netip.MustParseAddr(a.Name)
				in := func(s *networkingv1.ServiceCIDR) bool {
					return netip.MustParsePrefix(s.Spec.CIDRs[0]).Contains(ip)
				}
				if a.Labels[networkingv1.LabelManagedBy] == allocator && in(all[name]) &&
					!slices.ContainsFunc(slices.Collect(maps.Values(all)), func(s *networkingv1.ServiceCIDR) bool {
						return s.Name != name && s.DeletionTimestamp == nil && in(s)
					}) {
					return true
				}
			}
			return false
		}
		w.OnUpdate = func(was, is client.Object) {
			if !slices.Contains(was.GetFinalizers(), protection) || slices.Contains(is.GetFinalizers(), protection) {
				return
			}
			if is.GetName() != ours && (orphan(is.GetName()) || w.Now.Sub(is.GetDeletionTimestamp().Time) < grace) {
				w.T.Fatalf("range %s goes too early", is.GetName())
			}
		}
		w.Pause = grace
		w.Live(map[string]func(*rapid.T){
			"range comes": func(t *rapid.T) {
				w.Create(&networkingv1.ServiceCIDR{
					ObjectMeta: metav1.ObjectMeta{Name: names.Draw(t, "range")},
					Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{cidrs.Draw(t, "cidr")}},
				})
			},
			"somebody says that a range is not ready": func(t *rapid.T) {
				model.Update(w, names.Draw(t, "range"), func(s *networkingv1.ServiceCIDR) {
					if s.DeletionTimestamp == nil {
						s.Status = with(s, metav1.ConditionFalse, "Said", "so").Status
					}
				})
			},
			"range goes": func(t *rapid.T) { model.Delete[*networkingv1.ServiceCIDR](w, names.Draw(t, "range")) },
			"address comes": func(t *rapid.T) {
				by := rapid.SampledFrom([]string{allocator, allocator, "somebody"}).Draw(t, "by")
				w.Create(&networkingv1.IPAddress{
					ObjectMeta: metav1.ObjectMeta{Name: ips.Draw(t, "ip"), Labels: map[string]string{networkingv1.LabelManagedBy: by}},
				})
			},
			"address goes": func(t *rapid.T) { model.Delete[*networkingv1.IPAddress](w, ips.Draw(t, "ip")) },
		}, func() {})
		w.Settle(2 * grace)
		for name, s := range model.Stored[*networkingv1.ServiceCIDR](w) {
			ready := meta.FindStatusCondition(s.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
			switch {
			case name == ours:
			case s.DeletionTimestamp == nil &&
				(ready == nil || ready.Status != metav1.ConditionTrue || !slices.Contains(s.Finalizers, protection)):
				t.Fatalf("range %s is not ready, or not protected", name)
			case s.DeletionTimestamp != nil && !orphan(name):
				t.Fatalf("range %s, which holds no address alone, does not go", name)
			case s.DeletionTimestamp != nil && (ready == nil || ready.Reason != networkingv1.ServiceCIDRReasonTerminating):
				t.Fatalf("range %s does not say why it is kept", name)
			}
		}
	})
}

func TestPlanWaitsForServersThatLag(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{
			Name:              "a",
			Finalizers:        []string{"x", protection},
			DeletionTimestamp: &metav1.Time{Time: now.Add(-4 * time.Second)},
		},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.0.0.0/28"}},
	}
	require.Equal(t, Decision{Again: 6 * time.Second}, Plan(s, nil, nil, now))
	require.Equal(t, []string{"x"}, Plan(s, nil, nil, now.Add(6*time.Second)).Object.Finalizers)
	require.NotNil(t, Plan(s, nil, []netip.Addr{netip.MustParseAddr("10.0.0.3")}, now.Add(time.Hour)).Status)
}
