package builtin

import (
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// autoscalerRows returns the rows of HorizontalPodAutoscaler v2 and v1. Objects of v1 are stored as v2.
func autoscalerRows() []*kind.Resource {
	v2 := row[autoscalingv2.HorizontalPodAutoscaler, autoscalingv2.HorizontalPodAutoscalerList](gv("autoscaling", "v2"),
		"horizontalpodautoscalers", "horizontalpodautoscaler",
		horizontalpodautoscaler.Strategy, metaFields)
	v1 := row[autoscalingv1.HorizontalPodAutoscaler, autoscalingv1.HorizontalPodAutoscalerList](gv("autoscaling", "v1"),
		"horizontalpodautoscalers", "horizontalpodautoscaler",
		horizontalpodautoscaler.Strategy, metaFields)
	v1.StoredAs = v2
	v2.Also = []*kind.Resource{v1}
	rows := []*kind.Resource{v2, v1}
	for _, r := range rows {
		r.ShortNames, r.Categories, r.Status = []string{"hpa"}, []string{"all"}, horizontalpodautoscaler.StatusStrategy
	}
	return rows
}
