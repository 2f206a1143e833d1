package devicetaint

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/engine"
)

// oneRule is a cache with at most one rule. It counts how often claims are listed.
type oneRule struct {
	client.Reader
	rule   *resourcev1.DeviceTaintRule
	listed int
}

func (c *oneRule) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	if c.rule == nil {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	c.rule.DeepCopyInto(o.(*resourcev1.DeviceTaintRule))
	return nil
}

func (c *oneRule) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if _, ok := list.(*resourcev1.ResourceClaimList); ok {
		c.listed++
	}
	return nil
}

// An unchanged rule is evaluated once per statusPeriod, however often pods and claims change. A changed rule is
// evaluated at once.
func TestRulesAreLookedAtOnceInAWhile(t *testing.T) {
	r := rule(&resourcev1.DeviceTaintSelector{Driver: new("gpu.example.com")},
		taint("broken", resourcev1.DeviceTaintEffectNoExecute, 0))
	r.Name, r.Generation = "rule", 1
	r.Status.Conditions = []metav1.Condition{
		{
			Type: resourcev1.DeviceTaintConditionEvictionInProgress, Status: metav1.ConditionFalse, Reason: "NotStarted",
			ObservedGeneration: 1,
			LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour)),
		},
	}
	cache, now := &oneRule{rule: r}, time.Now()
	rules := &rules{Env: engine.Env{Cache: cache, Now: func() time.Time { return now }}, looked: map[string]look{}}
	request := engine.RequestFor("", "rule")
	reconcile := func(listed int, again time.Duration) {
		t.Helper()
		res, err := rules.reconcile(t.Context(), request)
		require.NoError(t, err)
		require.Equal(t, listed, cache.listed)
		require.Equal(t, again, res.RequeueAfter)
	}
	reconcile(1, 0)
	for range 100 {
		reconcile(1, statusPeriod)
	}
	now = now.Add(statusPeriod - time.Second)
	reconcile(1, time.Second)
	now = now.Add(time.Second)
	reconcile(2, 0)
	reconcile(2, statusPeriod)
	r.Status.Conditions[0].ObservedGeneration, r.Generation = 2, 2
	reconcile(3, 0)
	r.UID = types.UID("another")
	reconcile(4, 0)
	cache.rule = nil
	reconcile(4, 0)
	require.Empty(t, rules.looked)
}

// A rule without a selector affects no claim.
func TestRulesWithoutASelectorListNothing(t *testing.T) {
	cache := &oneRule{}
	list, err := (&rules{Env: engine.Env{Cache: cache}}).claims(t.Context(),
		rule(nil, taint("broken", resourcev1.DeviceTaintEffectNoExecute, 0)))
	require.NoError(t, err)
	require.Empty(t, list.Items)
	require.Zero(t, cache.listed)
}
