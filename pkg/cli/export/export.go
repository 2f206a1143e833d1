package export

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// page is the number of objects per list request. An object has at most about 3 MiB.
	page = 64
	// maxAnswer is the maximum size of a response, in bytes.
	maxAnswer = 256 << 20
	// maxNamespaces is the maximum number of namespaces. Their names are kept in memory.
	maxNamespaces = 100_000
)

// Options configure an export.
type Options struct {
	// Namespace restricts the export to one namespace and its Namespace object. Empty means the whole cluster.
	Namespace string
	// Secrets includes Secrets in clear text, except Secrets with tokens.
	Secrets bool
	// Warn, if set, is called for each API group that could not be exported.
	Warn func(string)
}

// Result counts the exported objects and namespaces.
type Result struct{ Objects, Namespaces int }

// Export writes the objects of a cluster to out: CustomResourceDefinitions, cluster-scoped objects, the objects of
// each namespace, and admission configuration. Each list is consistent; different lists may be from different
// times. The caller must commit out.
func Export(ctx context.Context, config *rest.Config, o Options, out Output) (Result, error) {
	e, err := connect(config, o, out)
	if err != nil {
		return Result{}, err
	}
	client, err := discovery.NewDiscoveryClientForConfig(e.config)
	if err != nil {
		return Result{}, err
	}
	kinds, silent, err := discover(ctx, client)
	if err != nil {
		return Result{}, err
	}
	for gv, err := range silent {
		e.warn(fmt.Sprintf("objects of %s are left out, since its API server does not answer: %v. See coracle ctl get "+
			"apiservice", gv, err))
	}
	kinds = slices.DeleteFunc(kinds, func(k kind) bool { return k.name() == "secrets" && !o.Secrets })
	err = e.all(ctx, kinds)
	return e.result, err
}

type exporter struct {
	Options
	config     *rest.Config
	client     dynamic.Interface
	out        Output
	namespaces []string
	result     Result
}

func connect(config *rest.Config, o Options, out Output) (*exporter, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // no client-side limit; the server throttles
	// Suppress deprecation warnings: discovery also lists deprecated kinds that have no objects.
	config.WarningHandlerWithContext = rest.NoWarnings{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return limited{next} })
	client, err := dynamic.NewForConfig(config)
	return &exporter{Options: o, config: config, client: client, out: out}, err
}

func (e *exporter) warn(text string) {
	if e.Warn != nil {
		e.Warn(text)
	}
}

// all writes the objects of all kinds. kinds must be sorted as discover returns them.
func (e *exporter) all(ctx context.Context, kinds []kind) error {
	if e.Namespace != "" {
		return e.one(ctx, kinds)
	}
	var inside []kind
	for _, k := range kinds {
		if k.namespaced {
			inside = append(inside, k)
		}
	}
	for _, s := range []stage{definitions, clusterWide, inNamespaces, admission} {
		if s == inNamespaces {
			if err := e.inside(ctx, inside); err != nil {
				return err
			}
			continue
		}
		for _, k := range kinds {
			if k.stage() == s {
				if err := e.kind(ctx, k, "", fmt.Sprintf("%s/%02d-%s.yaml", stageDirs[s], k.rank(), k.name())); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (e *exporter) one(ctx context.Context, kinds []kind) error {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name() == "namespaces" })
	if i < 0 {
		return errors.New("the cluster has no namespaces: is it a Kubernetes cluster?")
	}
	k := kinds[i]
	namespace, err := e.client.Resource(k.resource).Get(ctx, e.Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no namespace %q: `coracle ctl get namespaces` lists them", e.Namespace)
	}
	if err != nil {
		return err
	}
	if err := e.object(k, namespace, fmt.Sprintf("%s/%02d-namespaces.yaml", stageDirs[clusterWide], k.rank())); err !=
		nil {
		return err
	}
	e.namespaces = []string{e.Namespace}
	return e.inside(ctx, slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return !k.namespaced }))
}

func (e *exporter) inside(ctx context.Context, kinds []kind) error {
	e.result.Namespaces = len(e.namespaces)
	kinds, err := e.used(ctx, kinds)
	if err != nil {
		return err
	}
	slices.Sort(e.namespaces)
	for _, namespace := range e.namespaces {
		// The name becomes a directory name, so a hostile server must not choose a path.
		if bad := apivalidation.ValidateNamespaceName(namespace, false); len(bad) > 0 {
			return fmt.Errorf("the cluster says that it has a namespace %q: %s", namespace, bad[0])
		}
		for _, k := range kinds {
			if err := e.kind(ctx, k, namespace,
				fmt.Sprintf("%s/%s/%02d-%s.yaml", stageDirs[inNamespaces], namespace, k.rank(), k.name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// used returns the kinds that have any object, so that the others are not listed in each namespace.
func (e *exporter) used(ctx context.Context, kinds []kind) ([]kind, error) {
	var used []kind
	for _, k := range kinds {
		list, err := e.list(ctx, k, e.Namespace, metav1.ListOptions{Limit: 1})
		if err != nil {
			return nil, err
		}
		if len(list.Items) > 0 {
			used = append(used, k)
		}
	}
	return used, nil
}

// kind writes the objects of one kind, page by page. The server returns them sorted by name.
func (e *exporter) kind(ctx context.Context, k kind, namespace, file string) error {
	o := metav1.ListOptions{Limit: page}
	for {
		list, err := e.list(ctx, k, namespace, o)
		if err != nil {
			return err
		}
		for i := range list.Items {
			if err := e.object(k, &list.Items[i], file); err != nil {
				return err
			}
		}
		next := list.GetContinue()
		if next == "" {
			return nil
		}
		if next == o.Continue {
			return fmt.Errorf("the cluster sends the same page of %s again and again", k.name())
		}
		o.Continue = next
	}
}

func (e *exporter) list(ctx context.Context, k kind, namespace string,
	o metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	list, err := e.client.Resource(k.resource).Namespace(namespace).List(ctx, o)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return &unstructured.UnstructuredList{}, nil // the kind was removed after discovery
	case apierrors.IsResourceExpired(err):
		return nil, fmt.Errorf("%s changed faster than they could be read: export again: %w", k.name(), err)
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("%w: export with the kubeconfig of an administrator", err)
	case err != nil:
		return nil, fmt.Errorf("could not list %s: %w", k.name(), err)
	}
	return list, nil
}

func (e *exporter) object(k kind, o *unstructured.Unstructured, file string) error {
	if k.name() == "namespaces" && e.Namespace == "" && o.GetDeletionTimestamp() == nil {
		if len(e.namespaces) == maxNamespaces {
			return fmt.Errorf("there are more than %d namespaces: export them one by one with -n", maxNamespaces)
		}
		e.namespaces = append(e.namespaces, o.GetName())
	}
	if omit(k, o) {
		return nil
	}
	reduce(k, o)
	document, err := yaml.Marshal(o.Object)
	if err != nil {
		return fmt.Errorf("%s %s: %w", k.name(), o.GetName(), err)
	}
	e.result.Objects++
	return e.out.write(file, document)
}

// limited fails reads of a response beyond maxAnswer.
type limited struct{ http.RoundTripper }

func (l limited) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := l.RoundTripper.RoundTrip(req)
	if err != nil {
		return res, err
	}
	body := res.Body
	res.Body = &answer{bounded.Reader(body, maxAnswer), body.Close}
	return res, nil
}

type answer struct {
	from  interface{ Read([]byte) (int, error) }
	close func() error
}

func (a *answer) Read(p []byte) (int, error) { return a.from.Read(p) }
func (a *answer) Close() error               { return a.close() }
