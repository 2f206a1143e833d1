package commands

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/count"
	"github.com/coracle-dev/coracle/pkg/control/controllers/loadbalancer"
	"github.com/coracle-dev/coracle/pkg/engine/podstate"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/metrics"
)

const (
	askWait = 5 * time.Second
	askPods = 64 // per part
)

// BuildbarnStatus draws the farms of the namespace, or of all namespaces: the states of the parts, and the metrics of
// their programs.
func (c cluster) BuildbarnStatus(ctx context.Context, out io.Writer, all bool) error {
	var in []ctrl.ListOption
	if !all {
		in = append(in, ctrl.InNamespace(c.Namespace))
	}
	var farms buildbarn.BuildbarnList
	if err := c.Client.List(ctx, &farms, in...); err != nil {
		return err
	}
	var parts []buildbarn.Part
	for _, list := range []ctrl.ObjectList{
		&buildbarn.BuildbarnSchedulerList{}, &buildbarn.BuildbarnStorageList{}, &buildbarn.BuildbarnFrontendList{},
		&buildbarn.BuildbarnWorkerList{}, &buildbarn.BuildbarnBrowserList{},
	} {
		if err := c.Client.List(ctx, list, in...); err != nil {
			return err
		}
		_ = meta.EachListItem(list, func(o runtime.Object) error {
			if p, ok := o.(buildbarn.Part); ok {
				parts = append(parts, p)
			}
			return nil
		})
	}
	if len(farms.Items)+len(parts) == 0 {
		where, hint := "any namespace", ""
		if !all {
			if err := c.CheckNamespace(ctx); err != nil {
				return err
			}
			where, hint = "namespace "+c.Namespace, ", -A lists all namespaces"
		}
		_, err := fmt.Fprintf(out, "There is no farm in %s: `coracle help build-farm` makes one%s.\n", where, hint)
		return err
	}
	client, err := rest.HTTPClientFor(c.REST)
	if err != nil {
		return err
	}
	d := drawing{cluster: c, client: client, out: out}
	for i := range farms.Items {
		b := &farms.Items[i]
		fmt.Fprintf(out, "%s/%s  %s, %d of %s ready\n", b.Namespace, b.Name, cmp.Or(string(b.Status.State), "new"),
			b.Status.ReadyReplicas, count.Of(b.Status.Replicas, "pod"))
		var own []buildbarn.Part
		parts = slices.DeleteFunc(parts, func(p buildbarn.Part) bool {
			mine := metav1.IsControlledBy(p, b)
			if mine {
				own = append(own, p)
			}
			return mine
		})
		d.parts(ctx, own)
	}
	for len(parts) > 0 {
		namespace := parts[0].GetNamespace()
		var own []buildbarn.Part
		parts = slices.DeleteFunc(parts, func(p buildbarn.Part) bool {
			if p.GetNamespace() == namespace {
				own = append(own, p)
			}
			return p.GetNamespace() == namespace
		})
		fmt.Fprintf(out, "%s  %s\n", namespace, count.Of(len(own), "part"))
		d.parts(ctx, own)
	}
	return nil
}

type drawing struct {
	cluster cluster
	client  *http.Client
	out     io.Writer
}

func (d drawing) parts(ctx context.Context, list []buildbarn.Part) {
	width := 0
	for _, p := range list {
		width = max(width, len(p.GetName()))
	}
	for i, p := range list {
		branch, below := "├─", "│ "
		if i == len(list)-1 {
			branch, below = "└─", "  "
		}
		s := p.Observed()
		fmt.Fprintf(d.out, "%s %-9s  %-*s  %-8s  %d/%d\n", branch, p.Component(), width, p.GetName(), cmp.Or(s.State, "new"),
			s.ReadyReplicas, s.Replicas)
		for _, line := range d.details(ctx, p) {
			fmt.Fprintf(d.out, "%s   %s\n", below, line)
		}
	}
}

func (d drawing) details(ctx context.Context, p buildbarn.Part) (lines []string) {
	for _, kind := range []string{buildbarn.ConditionReady, buildbarn.ConditionConfigFits} {
		if c := meta.FindStatusCondition(p.Observed().Conditions, kind); c != nil && c.Status == metav1.ConditionFalse {
			lines = append(lines, c.Reason+": "+c.Message)
		}
	}
	switch p := p.(type) {
	case *buildbarn.BuildbarnScheduler:
		d.eachPod(ctx, p, func(_ string, f metrics.Families) {
			for _, q := range metrics.Queues(f) {
				busy := min(q.Executing, q.Workers)
				lines = append(lines,
					fmt.Sprintf("queue %s: %d queued, %d executing; workers: %d busy, %d idle", queueName(q), q.Queued, q.Executing,
						busy, q.Workers-busy))
			}
		}, &lines)
	case *buildbarn.BuildbarnStorage:
		d.eachPod(ctx, p, func(pod string, f metrics.Families) {
			if fill := metrics.Fill(f); len(fill) > 0 {
				lines = append(lines,
					fmt.Sprintf("%s: files %s, results %s; when full, the oldest are replaced", pod,
						cmp.Or(fill["cas"], "empty"), cmp.Or(fill["ac"], "empty")))
			}
		}, &lines)
	case *buildbarn.BuildbarnFrontend:
		var s corev1.Service
		if err := d.cluster.Client.Get(ctx, ctrl.ObjectKeyFromObject(p), &s); err == nil {
			if c := meta.FindStatusCondition(s.Status.Conditions, loadbalancer.Condition); c != nil &&
				c.Status == metav1.ConditionFalse {
				lines = append(lines, "no external address: "+c.Message)
			}
		}
		var had, asked int64
		d.eachPod(ctx, p, func(_ string, f metrics.Families) {
			h, a := metrics.Hits(f)
			had, asked = had+h, asked+a
		}, &lines)
		if asked > 0 {
			lines = append(lines, fmt.Sprintf("hit rate %d%%: %d of %s in the cache", 100*had/asked, had,
				count.Of(int64(asked), "action")))
		}
	case *buildbarn.BuildbarnWorker:
		if q := p.Status.Queue; q != nil && p.Spec.Scale != nil {
			lines = append(lines,
				fmt.Sprintf("follows %s: %s wanted, %d to %d allowed", p.Spec.Scale.Scheduler,
					count.Of(q.DesiredReplicas, "pod"), p.Spec.Scale.Min, p.Spec.Scale.Max))
		}
	}
	return lines
}

func queueName(q metrics.Queue) string {
	var words []string
	if q.InstanceNamePrefix != "" {
		words = append(words, q.InstanceNamePrefix)
	}
	for _, p := range q.Platform {
		words = append(words, p.Name+"="+p.Value)
	}
	return cmp.Or(printable(strings.Join(words, " ")), "of no platform")
}

// printable removes control characters, which could move a terminal's cursor: pods choose the names.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return -1
		}
		return r
	}, s)
}

// eachPod reads the metrics of each ready pod of a part through the API server.
func (d drawing) eachPod(ctx context.Context, p buildbarn.Part, use func(pod string, f metrics.Families),
	lines *[]string) {
	var pods corev1.PodList
	if err := d.cluster.Client.List(ctx, &pods, ctrl.InNamespace(p.GetNamespace()),
		ctrl.MatchingLabels(buildbarn.Labels(p)), ctrl.Limit(askPods)); err != nil {
		*lines = append(*lines, "its pods cannot be listed: "+err.Error())
		return
	}
	own, err := metrics.Own(ctx, d.cluster.Client, p, pods.Items)
	if err != nil {
		*lines = append(*lines, "the workload of its pods cannot be read: "+err.Error())
		return
	}
	for _, pod := range own {
		if !podstate.Ready(pod) {
			continue
		}
		f, err := d.read(ctx, pod)
		if err != nil {
			*lines = append(*lines,
				fmt.Sprintf("%s: its metrics cannot be read from port %d: %v", pod.Name, buildbarn.PortMetrics, err))
			continue
		}
		use(pod.Name, f)
	}
}

func (d drawing) read(ctx context.Context, pod *corev1.Pod) (metrics.Families, error) {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	base, _, err := rest.DefaultServerUrlFor(d.cluster.REST)
	if err != nil {
		return nil, err
	}
	at := base.JoinPath("api/v1/namespaces", pod.Namespace, "pods", fmt.Sprintf("%s:%d", pod.Name, buildbarn.PortMetrics),
		"proxy/metrics")
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the answer is %s", resp.Status)
	}
	return metrics.Parse(resp.Body)
}
