package controllers_test

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/pkg/testing/controlplane"
)

func autoscaler(name, apiVersion, kind, target string, most int32) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: apiVersion, Kind: kind, Name: target},
			MaxReplicas:    most,
		},
	}
}

// TestAutoscalers runs over HTTP with the rights of upstream's role. No metrics are served.
func TestAutoscalers(t *testing.T) {
	c := start(t, controlplane.Options{Agent: true, Log: slog.LevelError, HTTP: true})
	c.Node("a")
	condition := func(a *autoscalingv2.HorizontalPodAutoscaler,
		kind autoscalingv2.HorizontalPodAutoscalerConditionType) (reason, message string) {
		for _, c := range a.Status.Conditions {
			if c.Type == kind {
				return c.Reason, c.Message
			}
		}
		return "", ""
	}
	wait := func(name string, kind autoscalingv2.HorizontalPodAutoscalerConditionType, reason string) string {
		a := controlplane.Until(c, &autoscalingv2.HorizontalPodAutoscalerList{}, "default", name,
			func(a *autoscalingv2.HorizontalPodAutoscaler) bool {
				is, _ := condition(a, kind)
				return is == reason
			})
		_, message := condition(a, kind)
		return message
	}
	c.Make(deployment("web", "one", 4))
	controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", done)

	c.Make(autoscaler("web", "apps/v1", "Deployment", "web", 2))
	// Wait for this condition first: the next reconcile replaces it.
	require.Equal(t, "the HPA controller was able to update the target scale to 2",
		wait("web", autoscalingv2.AbleToScale, "SucceededRescale"))
	controlplane.Until(c, &appsv1.DeploymentList{}, "default", "web", func(d *appsv1.Deployment) bool {
		return *d.Spec.Replicas == 2 && done(d)
	})

	c.Make(autoscaler("none", "coordination.k8s.io/v1", "Lease", "c", 2))
	require.Contains(t, wait("none", autoscalingv2.AbleToScale, "FailedGetScale"),
		"the server could not find the requested resource")
	c.Make(autoscaler("unknown", "example.com/v1", "Thing", "c", 2))
	require.Contains(t, wait("unknown", autoscalingv2.AbleToScale, "FailedGetScale"),
		`no matches for kind "Thing" in group "example.com"`)

	c.Make(deployment("blind", "one", 1))
	controlplane.Until(c, &appsv1.DeploymentList{}, "default", "blind", done)
	c.Make(autoscaler("blind", "apps/v1", "Deployment", "blind", 2))
	require.Equal(t,
		"the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics for "+
			"resource cpu: "+
			"unable to fetch metrics from resource metrics API: no metrics returned from resource metrics API",
		wait("blind", autoscalingv2.ScalingActive, "FailedGetResourceMetric"))
	c.Make(autoscaler("second", "apps/v1", "Deployment", "blind", 5))
	require.Contains(t, wait("second", autoscalingv2.ScalingActive, "AmbiguousSelector"),
		"controlled by more than one HPA")
}
