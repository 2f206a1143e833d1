package flowcontrol

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/run/runtest"
	"github.com/coracle-dev/coracle/pkg/testing/registrytest"
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// configured is one call of Configure.
type configured struct {
	levels  []*flowcontrolv1.PriorityLevelConfiguration
	schemas []*flowcontrolv1.FlowSchema
}

func (c configured) schema(name string) *flowcontrolv1.FlowSchema {
	for _, s := range c.schemas {
		if s.Name == name {
			return s
		}
	}
	return nil
}

func dangling(s *flowcontrolv1.FlowSchema) flowcontrolv1.ConditionStatus {
	if s == nil || len(s.Status.Conditions) == 0 {
		return ""
	}
	return s.Status.Conditions[0].Status
}

func TestTheObjectsOfACluster(t *testing.T) {
	e := registrytest.Start(t, registrytest.Options{})
	c, ctx := e.As("admin"), context.Background()
	calls := make(chan configured, 1000)
	controller, err := New(Config{Client: c, Log: slog.New(slog.DiscardHandler),
		Configure: func(l []*flowcontrolv1.PriorityLevelConfiguration, s []*flowcontrolv1.FlowSchema) {
			calls <- configured{l, s}
		}})
	require.NoError(t, err)
	runtest.Start(t, controller)
	// until receives configurations until ok accepts one.
	until := func(ok func(configured) bool) configured {
		t.Helper()
		for {
			if is := <-calls; ok(is) {
				return is
			}
		}
	}
	all := until(func(is configured) bool {
		for _, s := range is.schemas {
			if dangling(s) != flowcontrolv1.ConditionFalse {
				return false
			}
		}
		return len(is.schemas) == 11 && len(is.levels) == 8
	})
	require.Equal(t, "true", all.schemas[0].Annotations[flowcontrolv1.AutoUpdateAnnotationKey])
	managers := map[string]bool{}
	for _, m := range all.schemas[0].ManagedFields {
		managers[m.Manager] = true
	}
	require.Contains(t, managers, string(producer))
	require.Contains(t, managers, string(consumer))

	// A schema whose level does not exist.
	mine := all.schema("global-default").DeepCopy()
	mine.ObjectMeta = metav1.ObjectMeta{Name: "mine"}
	mine.Spec.PriorityLevelConfiguration.Name = "new"
	require.NoError(t, c.Create(ctx, mine))
	until(func(is configured) bool { return dangling(is.schema("mine")) == flowcontrolv1.ConditionTrue })
	level := &flowcontrolv1.PriorityLevelConfiguration{}
	require.NoError(t, c.Get(ctx, ctrl.ObjectKey{Name: "workload-low"}, level))
	level.ObjectMeta = metav1.ObjectMeta{Name: "new"}
	require.NoError(t, c.Create(ctx, level))
	until(func(is configured) bool { return dangling(is.schema("mine")) == flowcontrolv1.ConditionFalse })

	// As upstream, changes of suggested objects are kept only if the annotation says so, and deleted objects are
	// recreated.
	accounts := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "service-accounts"}}
	change := func(annotation string) {
		patch := `{"metadata":{"annotations":{"apf.kubernetes.io/autoupdate-spec":"` + annotation +
			`"}},"spec":{"matchingPrecedence":77}}`
		require.NoError(t, c.Patch(ctx, accounts, ctrl.RawPatch(types.MergePatchType, []byte(patch))))
	}
	change("true")
	until(func(is configured) bool {
		s := is.schema("service-accounts")
		return s.Generation == 3 && s.Spec.MatchingPrecedence == 9000
	})
	change("false")
	require.NoError(t, c.Delete(ctx, all.schema("exempt")))
	is := until(func(is configured) bool {
		s := is.schema("exempt")
		return s != nil && s.UID != all.schema("exempt").UID
	})
	require.EqualValues(t, 77, is.schema("service-accounts").Spec.MatchingPrecedence)
}
