// Command bench measures any cluster and prints the results beside Coracle's budgets (README.md).
//
//	bench -kubeconfig FILE [-image IMAGE] [-pids 1,2] [-start 'COMMAND'] [-only create,list] [-o json]
//
// It works in namespaces whose names begin with "bench-", and deletes them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

type figure struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Budget float64 `json:"budget,omitempty"` // 0 for none
	// More means that higher is better: the budget is a minimum instead of a maximum.
	More bool   `json:"more,omitempty"`
	Note string `json:"note,omitempty"`
}

func (f figure) met() bool {
	if f.More {
		return f.Value >= f.Budget
	}
	return f.Value <= f.Budget
}

func millis(name string, d time.Duration, budget float64) figure {
	return figure{Name: name, Value: float64(d.Microseconds()) / 1000, Unit: "ms", Budget: budget}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := bench(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// group is a set of measurements that -only can select.
type group struct {
	name string
	run  func(context.Context, *cluster) ([]figure, error)
}

type options struct {
	kubeconfig, image, start, pids, only, output string
	target, targetPids, kubectl, listed          string
	beside, besidePids                           string
	children, keep                               bool
	idle                                         time.Duration
	writers, objects, watchers, pods             int
	nodes, binds, tasks, finished, resources     int
	servicePods, definitions, definitionSize     int
	rounds, many                                 int
	settle                                       time.Duration
}

func parse(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "the cluster to measure")
	f.StringVar(&o.image, "image", "docker.io/library/busybox:latest",
		"image, present on the node, of the pods that run; it needs `sleep`")
	f.StringVar(&o.start, "start", "", "shell command that starts the cluster; measures the time until a node is Ready")
	f.StringVar(&o.pids, "pids", "", "processes whose memory and idle CPU to measure, separated by commas")
	f.BoolVar(&o.children, "children", true, "count the descendants of -pids too")
	f.DurationVar(&o.idle, "idle", 10*time.Second, "how long to watch the CPU of idle processes")
	f.StringVar(&o.only, "only", "",
		"groups to run, separated by commas: "+
			"start,idle,pods,burst,create,schedule,watch,tasks,messages,kontrol,definitions (default all), "+
			"deployment,job,namespace,services (on fake nodes), custom,webhook,many")
	f.StringVar(&o.output, "o", "table", "table or json")
	f.IntVar(&o.writers, "writers", 32, "how many write at once")
	f.IntVar(&o.objects, "objects", 3000, "how many pods to create, list and delete")
	f.IntVar(&o.watchers, "watchers", 1000, "how many watch")
	f.IntVar(&o.pods, "pods", 30, "how many pods to run at once")
	f.IntVar(&o.nodes, "nodes", 1000, "how many nodes, with no machine behind them, to schedule onto")
	f.IntVar(&o.binds, "binds", 5000, "how many pods to schedule onto them")
	f.IntVar(&o.servicePods, "service-pods", 2000, "how many pods are behind the services of the group services")
	f.IntVar(&o.tasks, "tasks", 0, "how many tasks to run, each of them a container of `true`")
	f.IntVar(&o.finished, "finished", 0, "how many finished tasks to keep and list, besides")
	f.StringVar(&o.target, "target", "", "kubeconfig of another cluster, to measure Kontrol: -kubeconfig applies to it")
	f.StringVar(&o.targetPids, "target-pids", "",
		"processes of -target, separated by commas, whose processor time to measure")
	f.StringVar(&o.beside, "beside", "",
		"kubeconfig of another cluster to measure in turn with this one, and print ratios (groups "+
			"create,watch,custom,webhook)")
	f.StringVar(&o.besidePids, "beside-pids", "",
		"processes of -beside, separated by commas, whose processor time to measure")
	f.IntVar(&o.many, "many", 100000, "how many objects the group many has")
	f.StringVar(&o.listed, "listed", "",
		"namespace with the objects of the group many, from an earlier run, to list instead of creating them")
	f.IntVar(&o.rounds, "rounds", 3, "how often each group is measured on both clusters with -beside")
	f.StringVar(&o.kubectl, "kubectl", "kubectl", "command that is kubectl, to compare with Kontrol; empty for none")
	f.IntVar(&o.resources, "resources", 1000, "how many objects Kontrol applies")
	f.IntVar(&o.definitions, "definitions", 0, "how many CustomResourceDefinitions to create, besides")
	f.IntVar(&o.definitionSize, "definition-size", 24, "size of each of them, in KiB of JSON")
	f.BoolVar(&o.keep, "keep", false, "do not delete the definitions in the end")
	f.DurationVar(&o.settle, "settle", 0,
		"how long to wait, before the memory with Kontrol or definitions is measured, for what was collected to be returned")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.output != "table" && o.output != "json" {
		return o, fmt.Errorf("-o %s is neither table nor json", o.output)
	}
	return o, nil
}

func allGroups() []group {
	groups := []group{
		{"idle", idle},
		{"pods", oneByOne},
		{"burst", burst},
		{"create", objects},
		{"schedule", scheduling},
		{"watch", watching},
		{"tasks", taskFlow},
		{"messages", messages},
		{"kontrol", kontrol},
		{"definitions", manyDefinitions},
	}
	for _, name := range slices.Sorted(maps.Keys(scales)) {
		groups = append(groups, group{
			name, func(ctx context.Context, c *cluster) ([]figure, error) { return scale(ctx, c, name) },
		})
	}
	return append(groups, extensions...)
}

func chosen(only string, groups []group) (map[string]bool, error) {
	known := map[string]bool{"start": true}
	for _, g := range groups {
		known[g.name] = true
	}
	wanted := map[string]bool{}
	for _, name := range strings.Split(only, ",") {
		if name = strings.TrimSpace(name); name != "" {
			if !known[name] {
				return nil, fmt.Errorf("-only %s: there is no such group", name)
			}
			wanted[name] = true
		}
	}
	return wanted, nil
}

func bench(ctx context.Context, args []string, out, progress io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	groups := allGroups()
	wanted, err := chosen(o.only, groups)
	if err != nil {
		return err
	}
	named := func(name string) bool {
		return scales[name] != nil || slices.ContainsFunc(extensions, func(g group) bool { return g.name == name })
	}
	on := func(name string) bool { return len(wanted) == 0 && !named(name) || wanted[name] }
	if o.beside != "" {
		if len(wanted) == 0 {
			wanted = map[string]bool{"create": true, "watch": true, "custom": true, "webhook": true}
		}
		pairs, err := compare(ctx, o, slices.DeleteFunc(groups, func(g group) bool { return !on(g.name) }), progress)
		if err != nil {
			return err
		}
		if o.output == "json" {
			return json.NewEncoder(out).Encode(pairs)
		}
		return printPairs(out, pairs)
	}

	figures, err := measure(ctx, o, groups, on, progress)
	return errors.Join(err, print(out, o.output, figures))
}

// measure runs the selected groups. It also returns figures if a group failed.
func measure(ctx context.Context, o options, groups []group, on func(string) bool,
	progress io.Writer) (figures []figure, failed error) {
	if o.start != "" && on("start") {
		_, _ = fmt.Fprintln(progress, "start ...")
		took, err := startCluster(ctx, o)
		if err != nil {
			return nil, err
		}
		figures = append(figures, millis("start until a node is Ready", took, 1000))
	}
	c, err := connect(o)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		if !on(g.name) {
			continue
		}
		_, _ = fmt.Fprintln(progress, g.name, "...")
		found, err := g.run(ctx, c)
		figures = append(figures, found...)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", g.name, err))
			if ctx.Err() != nil {
				break
			}
		}
	}
	return figures, failed
}

func print(out io.Writer, format string, figures []figure) error {
	if format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(figures)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "WHAT\tMEASURED\tBUDGET\t\t")
	for _, f := range figures {
		budget, verdict := "-", ""
		if f.Budget != 0 {
			sign := "<"
			if f.More {
				sign = ">"
			}
			budget, verdict = sign+" "+amount(f.Budget, f.Unit), "ok"
			if !f.met() {
				verdict = "MISSED"
			}
		}
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", f.Name, amount(f.Value, f.Unit), budget, verdict, f.Note)
	}
	return w.Flush()
}

func amount(v float64, unit string) string {
	digits := 0
	if v < 10 {
		digits = 2
	} else if v < 100 {
		digits = 1
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text + " " + unit
}

type cluster struct {
	options
	config *rest.Config
	client kubernetes.Interface
}

func connect(o options) (*cluster, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w (give -kubeconfig)", err)
	}
	config.QPS = -1 // measure the cluster's limit, not the client's
	config.AcceptContentTypes, config.ContentType = "application/vnd.kubernetes.protobuf,application/json",
		"application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &cluster{options: o, config: config, client: client}, nil
}

// clients returns n clients with separate connections, as n processes would have.
func (c *cluster) clients(n int) ([]kubernetes.Interface, error) {
	all := make([]kubernetes.Interface, 0, n)
	for range n {
		config := rest.CopyConfig(c.config)
		// With its own dialer, client-go does not share a transport between them.
		config.Dial = newDialer().DialContext
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		all = append(all, client)
	}
	return all, nil
}

const cleanupTimeout = 2 * time.Minute

func (c *cluster) within(ctx context.Context, f func(namespace string) error) error {
	name := fmt.Sprintf("bench-%d", time.Now().UnixNano())
	if _, err := c.client.CoreV1().Namespaces().Create(ctx, namespace(name), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace: %w", err)
	}
	err := f(name)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	return errors.Join(err, c.remove(ctx, name))
}
