package admission

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	registration "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/warning"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

func TestConditionsThatTakeTooLongFail(t *testing.T) {
	h := secured(t, Plugins{})
	allow := func(*admissionv1.AdmissionRequest, *admissionv1.AdmissionResponse) {}
	condition := []registration.MatchCondition{{Name: "keys", Expression: "object.data.all(k, k != 'x')"}}
	conditional, always := serveHook(t, allow), serveHook(t, allow)
	set := func(policy registration.FailurePolicyType) {
		mutating := mutatingHook("conditional", conditional, "configmaps")
		mutating.MatchConditions, mutating.FailurePolicy = condition, &policy
		mutate(h, "m-"+strings.ToLower(string(policy)), mutating, mutatingHook("always", always, "configmaps"))
		validating := validatingHook("conditional", conditional, "configmaps")
		validating.MatchConditions, validating.FailurePolicy = condition, &policy
		validateBy(h, "v-"+strings.ToLower(string(policy)), validating, validatingHook("always", always, "configmaps"))
	}
	set(registration.Ignore)
	put(h, v1("ConfigMap", ""), settings("small", map[string]string{"a": "b"}))
	require.EqualValues(t, 2, conditional.calls.Load())
	require.EqualValues(t, 2, always.calls.Load())

	keys := map[string]string{}
	for i := range 30_000 {
		keys["k"+strconv.Itoa(i)] = ""
	}
	var said warnings
	h.ctx = warning.WithWarningRecorder(h.ctx, &said)
	put(h, v1("ConfigMap", ""), settings("large", keys))
	require.EqualValues(t, 2, conditional.calls.Load())
	require.EqualValues(t, 4, always.calls.Load(), "webhooks without conditions are called")
	require.Len(t, said.text, 2)
	require.Contains(t, said.text[0], "more than 300ms of processor time")

	set(registration.Fail)
	requireStatus(t, h.try(v1("ConfigMap", ""), settings("refused", keys)), 403, "running out of cost budget")
	_, err := h.Delete(h.ctx, at(registration.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration"), "", "m-fail"),
		metav1.DeleteOptions{})
	require.NoError(t, err)
	requireStatus(t, h.try(v1("ConfigMap", ""), settings("refused", keys)), 403, "running out of cost budget")
}

// The plugin's own work for a call, such as decoding the answer, does not count.
func TestCallsOfWebhooksAreNotLimited(t *testing.T) {
	burn := func() {
		bounded.CPU(t.Context(), 2*leastConditions, func(ctx context.Context) { <-spin(ctx) })
	}
	limitConditions(t.Context(), func(ctx context.Context) {
		c := ctx.(*conditions)
		c.left = 0
		c.Variables(nil)
		require.Zero(t, c.GetAndResetCost())
		call, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		burn()
		require.NoError(t, call.Err())
		require.NoError(t, ctx.Err())

		c.Variables(nil)
		<-spin(ctx)
		require.Error(t, ctx.Err())
		require.NotZero(t, c.GetAndResetCost())
		require.NoError(t, ctx.Err(), "only the evaluation is interrupted")
	})
}

// spin uses processor time until a context ends.
func spin(ctx context.Context) <-chan struct{} {
	done := ctx.Done()
	for ctx.Err() == nil { //nolint:revive // it uses processor time
	}
	return done
}
