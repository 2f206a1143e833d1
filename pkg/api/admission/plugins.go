// Package admission selects and configures upstream's admission plugins, and installs them in a registry as the
// chain that every write passes. Its invariant: a requested plugin runs with the given configuration, or Install
// fails. Configuration without effect is an error.
package admission

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	resourcequotaapi "k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota/validation"
	webhookinit "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"
	"k8s.io/kubernetes/plugin/pkg/admission/admit"
	"k8s.io/kubernetes/plugin/pkg/admission/alwayspullimages"
	"k8s.io/kubernetes/plugin/pkg/admission/antiaffinity"
	certapproval "k8s.io/kubernetes/plugin/pkg/admission/certificates/approval"
	"k8s.io/kubernetes/plugin/pkg/admission/certificates/ctbattest"
	certsigning "k8s.io/kubernetes/plugin/pkg/admission/certificates/signing"
	certsubject "k8s.io/kubernetes/plugin/pkg/admission/certificates/subjectrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/deny"
	"k8s.io/kubernetes/plugin/pkg/admission/eventratelimit"
	"k8s.io/kubernetes/plugin/pkg/admission/extendedresourcetoleration"
	"k8s.io/kubernetes/plugin/pkg/admission/gc"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/namespace/exists"
	"k8s.io/kubernetes/plugin/pkg/admission/network/defaultingressclass"
	"k8s.io/kubernetes/plugin/pkg/admission/network/denyserviceexternalips"
	"k8s.io/kubernetes/plugin/pkg/admission/nodedeclaredfeatures"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/nodetaint"
	"k8s.io/kubernetes/plugin/pkg/admission/podnodeselector"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"
	"k8s.io/kubernetes/plugin/pkg/admission/podtolerationrestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/admission/runtimeclass"
	"k8s.io/kubernetes/plugin/pkg/admission/security/podsecurity"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"
	"k8s.io/utils/ptr"

	"github.com/coracle-dev/coracle/pkg/api/local"
	"github.com/coracle-dev/coracle/pkg/api/registry"
	"github.com/coracle-dev/coracle/pkg/api/webhook"
)

// Plugins selects and configures the admission plugins.
type Plugins struct {
	// Enable and Disable change the default set of plugins. Names are upstream's.
	Enable, Disable []string
	// Config is the path of an AdmissionConfiguration (apiserver.config.k8s.io/v1), like upstream's
	// --admission-control-config-file. Empty for none.
	Config string
	// Schemas describes the objects that mutating admission policies change. Without it, requests that match such a
	// policy fail.
	Schemas Schemas
	// NotReadySeconds and UnreachableSeconds are how long pods without such a toleration stay on a node that is not
	// ready or unreachable. Nil means 300.
	NotReadySeconds, UnreachableSeconds *int64
}

// plugin is an admission plugin.
type plugin struct {
	name     string
	off      bool // off by default
	register func(*admission.Plugins)
	// within runs the plugin with a limit for its expressions. Nil if it has none.
	within func(context.Context, func(context.Context))
	// config is the configuration if the file has none for the plugin.
	config string
	// from returns informers of the objects that configure the plugin. The plugin is created when the first object
	// exists. Nil means that it is created at the start.
	from func(informers.SharedInformerFactory) []cache.SharedIndexInformer
	// check validates the configuration of such a plugin. It also reports whether the plugin reads objects from
	// files: it is then created at the start, which fails if the files are invalid.
	check func(config []byte) (fromFiles bool, err error)
}

// ordered lists the plugins in upstream's order. The registry implements ResourceQuota, which must come last because
// it charges the quota. Omitted are NamespaceAutoProvision (the registry refuses a missing namespace before any
// plugin runs), ImagePolicyWebhook (its responses are unlimited) and PodGroupProtection (its finalizer needs a
// controller).
//
// Decision: EventRateLimit and DenyServiceExternalIPs are on by default, unlike upstream. All events of an hour are in
// memory, and external IPs let a Service take addresses that belong to others. NodeAddresses is our own.
var ordered = []plugin{
	{name: admit.PluginName, register: admit.Register, off: true},
	{name: exists.PluginName, register: exists.Register, off: true},
	{name: antiaffinity.PluginName, register: antiaffinity.Register, off: true},
	{name: limitranger.PluginName, register: limitranger.Register},
	{name: serviceaccount.PluginName, register: serviceaccount.Register},
	{name: noderestriction.PluginName, register: noderestriction.Register},
	{name: nodeAddressesName, register: registerNodeAddresses},
	{name: nodetaint.PluginName, register: nodetaint.Register},
	{name: alwayspullimages.PluginName, register: alwayspullimages.Register, off: true},
	{name: podsecurity.PluginName, register: podsecurity.Register},
	{name: podnodeselector.PluginName, register: registerNodeSelector, off: true},
	{name: priority.PluginName, register: registerPriority},
	{name: defaulttolerationseconds.PluginName, register: defaulttolerationseconds.Register},
	{name: podtolerationrestriction.PluginName, register: podtolerationrestriction.Register, off: true},
	{name: storageInUse, register: registerInUse},
	{name: resize.PluginName, register: resize.Register},
	{name: defaultStorageClass, register: registerClassDefault},
	{name: eventratelimit.PluginName, register: eventratelimit.Register, config: defaultEventLimits},
	{name: extendedresourcetoleration.PluginName, register: extendedresourcetoleration.Register, off: true},
	{name: gc.PluginName, register: gc.Register, off: true},
	{name: runtimeclass.PluginName, register: runtimeclass.Register},
	{name: certapproval.PluginName, register: certapproval.Register},
	{name: certsigning.PluginName, register: certsigning.Register},
	{name: ctbattest.PluginName, register: ctbattest.Register},
	{name: certsubject.PluginName, register: certsubject.Register},
	{name: defaultingressclass.PluginName, register: defaultingressclass.Register},
	{name: denyserviceexternalips.PluginName, register: denyserviceexternalips.Register},
	{name: nodedeclaredfeatures.PluginName, register: nodedeclaredfeatures.Register},
	{name: podresize.PluginName, register: podresize.Register},
	{
		name: mutatingpolicy.PluginName, register: mutatingpolicy.Register, check: checkMutatingPolicyConfig,
		within: limitPolicies,
		from: func(f informers.SharedInformerFactory) []cache.SharedIndexInformer {
			return []cache.SharedIndexInformer{f.Admissionregistration().V1().MutatingAdmissionPolicies().Informer()}
		},
	},
	{
		name: mutating.PluginName, register: mutating.Register, check: checkWebhookConfig,
		within: limitConditions,
		from: func(f informers.SharedInformerFactory) []cache.SharedIndexInformer {
			return []cache.SharedIndexInformer{f.Admissionregistration().V1().MutatingWebhookConfigurations().Informer()}
		},
	},
	{
		name: validating.PluginName, register: validating.Register, check: checkPolicyConfig,
		within: limitPolicies,
		from: func(f informers.SharedInformerFactory) []cache.SharedIndexInformer {
			return []cache.SharedIndexInformer{f.Admissionregistration().V1().ValidatingAdmissionPolicies().Informer()}
		},
	},
	{
		name: validatingwebhook.PluginName, register: validatingwebhook.Register, check: checkWebhookConfig,
		within: limitConditions,
		from: func(f informers.SharedInformerFactory) []cache.SharedIndexInformer {
			return []cache.SharedIndexInformer{f.Admissionregistration().V1().ValidatingWebhookConfigurations().Informer()}
		},
	},
	{name: resourcequotaapi.PluginName},
	{name: deny.PluginName, register: deny.Register, off: true},
}

// defaultEventLimits lets 5,000 pods start in a namespace at once, and limits the events of a namespace within an
// hour, the default --event-ttl, to about 40,000.
const defaultEventLimits = `apiVersion: eventratelimit.admission.k8s.io/v1alpha1
kind: Configuration
limits:
- {type: Namespace, qps: 10, burst: 10000, cacheSize: 4096}
- {type: User, qps: 50, burst: 20000, cacheSize: 4096}
`

// alwaysOn lists the plugins that the registry implements and that cannot be disabled.
var alwaysOn = []string{"NamespaceLifecycle", "PodTopologyLabels"}

// on returns the enabled plugins, in order.
func (p Plugins) on() ([]plugin, error) {
	var errs []error
	known := slices.Clone(alwaysOn)
	for _, o := range ordered {
		known = append(known, o.name)
	}
	slices.Sort(known)
	for _, name := range slices.Concat(p.Enable, p.Disable) {
		if !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("unknown admission plugin %q: there are %s", name, strings.Join(known, ", ")))
		}
	}
	for _, name := range p.Disable {
		if slices.Contains(alwaysOn, name) {
			errs = append(errs, fmt.Errorf("the admission plugin %s cannot be disabled", name))
		}
		if slices.Contains(p.Enable, name) {
			errs = append(errs, fmt.Errorf("the admission plugin %s is both enabled and disabled", name))
		}
	}
	list := slices.DeleteFunc(slices.Clone(ordered), func(o plugin) bool {
		return slices.Contains(p.Disable, o.name) || o.off && !slices.Contains(p.Enable, o.name)
	})
	return list, errors.Join(errs...)
}

// Install creates the plugin chain for a registry and its clients, and sets it in the registry. Call it before the
// first write. The plugins' background work ends with the cache.
func Install(p Plugins, r *registry.Registry, clients *local.Clients) error {
	list, err := p.on()
	if err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	configs, err := readPluginConfigs(p.Config, list)
	if err != nil {
		return fmt.Errorf("admission configuration %s: %w", p.Config, err)
	}
	tolerationSeconds.Lock()
	defer tolerationSeconds.Unlock()
	if err := p.setTolerationSeconds(); err != nil {
		return err
	}
	known := admission.NewPlugins()
	n := needs{r, clients, &openapiSource{kinds: r.Kinds(), schemas: p.Schemas, done: clients.Done()}}
	chain := make([]admission.Interface, 0, len(list))
	for _, o := range list {
		config, err := configs.ConfigFor(o.name)
		if err != nil {
			return err
		}
		if o.register == nil {
			if err := useQuotas(r, config); err != nil {
				return fmt.Errorf("admission plugin %s: %w", o.name, err)
			}
			continue
		}
		o.register(known)
		if o.from != nil {
			fromFiles, err := o.check(configs[o.name])
			if err != nil {
				return fmt.Errorf("admission plugin %s: %w", o.name, err)
			}
			if !fromFiles {
				d := newOnDemand(known, o.name, configs[o.name], n, o.from(clients.Informers())...)
				chain = append(chain, o.limit(d))
				continue
			}
		}
		made, err := known.InitPlugin(o.name, config, n)
		if err != nil {
			return err
		}
		chain = append(chain, o.limit(made))
	}
	// It cannot be disabled: it prevents nodes from choosing their pods' addresses.
	chain = append(chain, ownNode{nodeidentifier.NewDefaultNodeIdentifier()})
	// As upstream: managed fields that a webhook broke are restored, and what plugins annotate is audited.
	r.UseAdmission(admission.WithAudit(restoring{reinvoking{admission.NewChainHandler(chain...)}}))
	return nil
}

// tolerationSeconds guards the global variables that upstream's DefaultTolerationSeconds reads when it is created: a
// process may run several clusters.
var tolerationSeconds sync.Mutex //nolint:gochecknoglobals // guards upstream's

func (p Plugins) setTolerationSeconds() error {
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	defaulttolerationseconds.RegisterFlags(set)
	for name, seconds := range map[string]*int64{
		"default-not-ready-toleration-seconds":   p.NotReadySeconds,
		"default-unreachable-toleration-seconds": p.UnreachableSeconds,
	} {
		if err := set.Set(name, strconv.FormatInt(ptr.Deref(seconds, usualTolerationSeconds), 10)); err != nil {
			return err
		}
	}
	return nil
}

// usualTolerationSeconds is upstream's default.
const usualTolerationSeconds = 300

// useQuotas enables the registry's ResourceQuota, with upstream's configuration format.
func useQuotas(r *registry.Registry, config io.Reader) error {
	if config == nil {
		return r.UseQuotas(nil)
	}
	c, err := resourcequotaapi.LoadConfiguration(config)
	if err != nil {
		return err
	}
	if errs := validation.ValidateConfiguration(c); len(errs) > 0 {
		return errs.ToAggregate()
	}
	return r.UseQuotas(c.LimitedResources)
}

// needs initializes plugins. It implements admission.PluginInitializer.
type needs struct {
	registry *registry.Registry
	clients  *local.Clients
	openapi  openapi.Client
}

func (n needs) Initialize(p admission.Interface) {
	// Features come first, because they decide what else a plugin wants.
	if w, ok := p.(initializer.WantsFeatures); ok {
		w.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	}
	if w, ok := p.(initializer.WantsEffectiveVersion); ok {
		w.InspectEffectiveVersion(compatibility.DefaultBuildEffectiveVersion())
	}
	if w, ok := p.(initializer.WantsExternalKubeInformerFactory); ok {
		w.SetExternalKubeInformerFactory(n.clients.Informers())
	}
	if w, ok := p.(initializer.WantsExternalKubeClientSet); ok {
		w.SetExternalKubeClientSet(cacheReads{client: n.clients.For(nil), openapi: n.openapi})
	}
	if w, ok := p.(webhookinit.WantsServiceResolver); ok {
		w.SetServiceResolver(webhook.NewServices(n.clients.Informers()))
	}
	if w, ok := p.(webhookinit.WantsAuthenticationInfoResolverWrapper); ok {
		w.SetAuthenticationInfoResolverWrapper(webhook.BoundResponses)
	}
	if w, ok := p.(initializer.WantsExcludedAdmissionResources); ok {
		w.SetExcludedAdmissionResources(exclusion.Excluded())
	}
	if w, ok := p.(initializer.WantsRESTMapper); ok {
		w.SetRESTMapper(currentMapper{n.clients.For(nil)})
	}
	if w, ok := p.(initializer.WantsDynamicClient); ok {
		w.SetDynamicClient(noClient{})
	}
	if w, ok := p.(initializer.WantsManifestLoaders); ok {
		w.SetManifestLoaders(manifestLoaders())
	}
	if w, ok := p.(initializer.WantsDrainedNotification); ok {
		w.SetDrainedNotification(n.clients.Done())
	}
	if w, ok := p.(initializer.WantsUnconditionalAuthorizer); ok {
		w.SetUnconditionalAuthorizer(n.registry)
	}
}
