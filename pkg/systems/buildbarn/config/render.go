// Package config renders the configuration files of a Buildbarn farm. Its invariant: pkg/systems/buildbarn/check
// accepts what Render returns, and finds that the programs read the files that Used returns. The field names are from
// the protocol buffers under pkg/proto/configuration of bb-storage dc342e1799d7 and bb-remote-execution cd89f0554d18,
// whose programs refuse unknown fields.
package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
)

// The file names, which are keys of the ConfigMap.
const (
	Common    = "common.libsonnet"
	Scheduler = "scheduler.jsonnet"
	Storage   = "storage.jsonnet"
	Frontend  = "frontend.jsonnet"
	Browser   = "browser.jsonnet"
	// Authorities is the file of the certificate authorities that a farm's programs trust, with TLS.
	Authorities = "authorities.pem"
)

// Worker returns the name of the file of an instance's worker.
func Worker(instance string) string { return "worker-" + instance + ".jsonnet" }

// Runner returns the name of the file of an instance's runner.
func Runner(instance string) string { return "runner-" + instance + ".jsonnet" }

// SchedulerOf returns the name of a farm's scheduler.
func SchedulerOf(farm string) string { return farm + "-scheduler" }

// StorageOf returns the name of a farm's storage.
func StorageOf(farm string) string { return farm + "-storage" }

// FrontendOf returns the name of a farm's frontend.
func FrontendOf(farm string) string { return farm + "-frontend" }

// BrowserOf returns the name of a farm's browser.
func BrowserOf(farm string) string { return farm + "-browser" }

// WorkersOf returns the name of the workers of a farm's pool.
func WorkersOf(farm, pool string) string { return farm + "-worker-" + pool }

// ConfigMapOf returns the name of the ConfigMap with a farm's files.
func ConfigMapOf(farm string) string { return farm + "-config" }

// Pods returns the number of storage pods of a farm with defaults.
func Pods(s buildbarn.FarmStorage) int32 {
	if s.Mirrored {
		return *s.Shards * 2
	}
	return *s.Shards
}

type object = map[string]any

// allow is a policy that accepts every client.
var allow = object{"allow": object{}}

// Render returns the files of a valid farm with defaults; trust is nil without TLS. They are JSON, except that workers
// read their own names from the environment, and the authorities from a file.
func Render(b *buildbarn.Buildbarn, trust *Trust) (map[string]string, error) {
	f := farm{b, trust}
	files := map[string]object{
		Common: f.common(), Scheduler: f.scheduler(), Storage: f.storage(), Frontend: f.frontend(), Browser: f.browser(),
	}
	for i := range b.Spec.Workers {
		w := &b.Spec.Workers[i]
		files[Worker(w.Name)], files[Runner(w.Name)] = f.worker(w), runner()
	}
	out := make(map[string]string, len(files))
	for name, content := range files {
		text, err := json.MarshalIndent(content, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out[name] = strings.NewReplacer(quoted(podName), `std.extVar("POD_NAME")`, quoted(nodeName),
			`std.extVar("NODE_NAME")`,
			quoted(authorities), `importstr "`+Authorities+`"`).Replace(string(text)) + "\n"
	}
	if trust != nil {
		out[Authorities] = trust.Authorities
	}
	return out, nil
}

// Placeholders for values that only the pod knows, and for the authorities' file. Validated names cannot contain them.
const (
	podName     = "\x00pod"
	nodeName    = "\x00node"
	authorities = "\x00authorities"
)

func quoted(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

type farm struct {
	*buildbarn.Buildbarn
	trust *Trust
}

func (f farm) common() object {
	return object{
		"blobstore": f.blobstore(), "browserUrl": f.browserURL(),
		"maximumMessageSizeBytes": f.Spec.Config.MaximumMessageSizeBytes, "global": global(),
	}
}

// global is the part that all programs except runners have in common. A runner has none, because its worker already
// uses the pod's port.
func global() object {
	return object{"diagnosticsHttpServer": object{
		"httpServers": []any{
			object{"listenAddresses": []any{fmt.Sprintf(":%d", buildbarn.PortMetrics)}, "authenticationPolicy": allow},
		},
		"enablePrometheus": true,
	}}
}

func (f farm) browserURL() string {
	if u := f.Spec.Config.BrowserURL; u != "" {
		return u
	}
	host := cmp.Or(f.Spec.Browser.IngressHost, "bb-browser."+f.Namespace)
	return "http://" + host
}

// backend returns the storage for clients: shards by the hash of the digest, each one pod or a mirrored pair.
func (f farm) backend() object {
	at := func(pod int32) object {
		return object{
			"grpc": object{
				"client": f.endpoint(fmt.Sprintf("%s-%d.%s.%s:%d", StorageOf(f.Name), pod, StorageOf(f.Name), f.Namespace,
					buildbarn.PortStorage)),
			},
		}
	}
	shards := object{}
	for i := range *f.Spec.Storage.Shards {
		one := at(i)
		if f.Spec.Storage.Mirrored {
			one = object{"mirrored": object{"backendA": at(2 * i), "backendB": at(2*i + 1),
				"replicatorAToB": object{"local": object{}}, "replicatorBToA": object{"local": object{}}}}
		}
		shards[strconv.Itoa(int(i))] = object{"backend": one, "weight": 1}
	}
	return object{"sharding": object{"shards": shards}}
}

func (f farm) blobstore() object {
	return object{"contentAddressableStorage": f.backend(), "actionCache": f.actionCache()}
}

// actionCache returns an action cache that only returns results whose files all exist.
func (f farm) actionCache() object {
	return object{
		"completenessChecking": object{
			"backend": f.backend(), "maximumTotalTreeSizeBytes": f.Spec.Config.MaximumTreeSizeBytes,
		},
	}
}

func listen(port int32) []any {
	return []any{object{"listenAddresses": []any{fmt.Sprintf(":%d", port)}, "authenticationPolicy": allow}}
}

// alive makes servers close connections whose peer has silently disappeared, such as a pod on a failed node. The
// scheduler gives actions to workers with an open call.
func alive(servers []any) []any {
	for _, s := range servers {
		s.(object)["keepaliveParameters"] = object{
			"time":                  "10s",
			"timeout":               "5s",
			"maxConnectionIdle":     "0s",
			"maxConnectionAge":      "0s",
			"maxConnectionAgeGrace": "0s",
		}
	}
	return servers
}

func seconds(n int32) string { return fmt.Sprintf("%ds", n) }

func (f farm) scheduler() object {
	c := f.Spec.Config
	queues := make([]any, 0, len(f.Spec.Workers))
	for _, w := range f.Spec.Workers {
		// With a predeclared queue, actions wait for the first worker instead of failing.
		queues = append(queues, object{
			"instanceNamePrefix": w.InstanceNamePrefix,
			"platform":           platform(w.Platform),
			"sizeClasses":        []any{0},
		})
	}
	return object{
		"adminHttpServers":           listen(buildbarn.PortSchedulerHTTP),
		"clientGrpcServers":          f.serve(buildbarn.PortSchedulerClient, RoleFrontend),
		"workerGrpcServers":          alive(f.serve(buildbarn.PortSchedulerWorker, RoleWorker)),
		"buildQueueStateGrpcServers": f.serve(buildbarn.PortSchedulerQueue, RoleOperator),
		"browserUrl":                 f.browserURL(),
		"contentAddressableStorage":  f.backend(),
		"maximumMessageSizeBytes":    c.MaximumMessageSizeBytes,
		"global":                     global(),
		"executeAuthorizer":          allow, "modifyDrainsAuthorizer": f.operate(), "killOperationsAuthorizer": f.operate(),
		"synchronizeAuthorizer": allow,
		"actionRouter": object{"simple": object{
			"platformKeyExtractor":    object{"actionAndCommand": object{}},
			"invocationKeyExtractors": []any{object{"correlatedInvocationsId": object{}}, object{"toolInvocationId": object{}}},
			"initialSizeClassAnalyzer": object{
				"defaultExecutionTimeout": seconds(c.DefaultExecutionSeconds),
				"maximumExecutionTimeout": seconds(c.MaximumExecutionSeconds),
			},
		}},
		"predeclaredPlatformQueues":         queues,
		"platformQueueWithNoWorkersTimeout": "900s",
	}
}

// platform returns the properties in the order that the Remote Execution API requires.
func platform(list []buildbarn.PlatformProperty) object {
	properties := make([]any, 0, len(list))
	for _, p := range Sorted(list) {
		properties = append(properties, object{"name": p.Name, "value": p.Value})
	}
	return object{"properties": properties}
}

// Sorted returns properties in the order of the Remote Execution API: by name, then by value.
func Sorted(list []buildbarn.PlatformProperty) []buildbarn.PlatformProperty {
	return slices.SortedFunc(slices.Values(list), func(a, b buildbarn.PlatformProperty) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return strings.Compare(a.Value, b.Value)
	})
}

func (f farm) storage() object {
	return object{
		"grpcServers":             f.serve(buildbarn.PortStorage, RoleScheduler, RoleFrontend, RoleWorker, RoleBrowser),
		"maximumMessageSizeBytes": f.Spec.Config.MaximumMessageSizeBytes,
		"global":                  global(),
		"contentAddressableStorage": object{"backend": f.local("/storage-cas", f.Spec.Storage.CASSize, 3),
			"getAuthorizer": allow, "putAuthorizer": allow, "findMissingAuthorizer": allow},
		"actionCache": object{
			"backend":       f.local("/storage-ac", f.Spec.Storage.ACSize, 1),
			"getAuthorizer": allow,
			"putAuthorizer": allow,
		},
	}
}

// local divides a claim's size like Buildbarn's own examples: 32/33 for the blocks, 1/84 for the map from keys to
// locations. The rest is for the state that survives a restart.
func (f farm) local(dir string, claim *resource.Quantity, newBlocks int) object {
	size := claim.Value()
	file := func(name string, bytes int64) object {
		return object{"file": object{"path": dir + "/" + name, "sizeBytes": bytes >> 20 << 20}}
	}
	return object{"local": object{
		"keyLocationMapOnBlockDevice":      file("key_location_map", max(size/84, 1<<20)),
		"keyLocationMapMaximumGetAttempts": 16,
		"keyLocationMapMaximumPutAttempts": 64,
		"oldBlocks":                        8,
		"currentBlocks":                    24,
		"newBlocks":                        newBlocks,
		"blocksOnBlockDevice":              object{"source": file("blocks", size/33*32-1<<20), "spareBlocks": 3},
		"persistent": object{
			"stateDirectoryPath": dir + "/persistent_state", "minimumEpochInterval": seconds(f.Spec.Config.PersistSeconds),
		},
	}}
}

func (f farm) frontend() object {
	scheduler := f.endpoint(fmt.Sprintf("%s.%s:%d", SchedulerOf(f.Name), f.Namespace, buildbarn.PortSchedulerClient))
	// Clients learn at once that no worker serves a platform. The scheduler reports it with UNAVAILABLE, which would
	// be retried.
	delete(scheduler, "defaultServiceConfig")
	// The scheduler shares its workers fairly between invocations, which it distinguishes by this header.
	scheduler["addMetadataJmespathExpression"] = object{
		"expression": fmt.Sprintf(`{"%[1]s": incomingGRPCMetadata."%[1]s"}`,
			"build.bazel.remote.execution.v2.requestmetadata-bin"),
	}
	return object{
		"grpcServers":             f.serve(buildbarn.PortFrontend, RoleClient),
		"schedulers":              object{"": object{"endpoint": scheduler}},
		"maximumMessageSizeBytes": f.Spec.Config.MaximumMessageSizeBytes,
		"global":                  global(),
		"contentAddressableStorage": object{
			"backend":               f.backend(),
			"getAuthorizer":         allow,
			"putAuthorizer":         allow,
			"findMissingAuthorizer": allow,
		},
		"actionCache":       object{"backend": f.actionCache(), "getAuthorizer": allow, "putAuthorizer": allow},
		"executeAuthorizer": allow,
	}
}

func (f farm) browser() object {
	return object{
		"blobstore": f.blobstore(), "maximumMessageSizeBytes": f.Spec.Config.MaximumMessageSizeBytes,
		"httpServers": listen(buildbarn.PortBrowser), "global": global(),
		"authorizer": allow, "requestMetadataLinksJmespathExpression": object{"expression": "`{}`"},
	}
}

func (f farm) worker(w *buildbarn.FarmWorkers) object {
	c := f.Spec.Config
	all := maps.Clone(global())
	all["setUmask"] = object{"umask": 0}
	return object{
		"blobstore": f.blobstore(), "browserUrl": f.browserURL(), "maximumMessageSizeBytes": c.MaximumMessageSizeBytes,
		"global":    all,
		"scheduler": f.endpoint(fmt.Sprintf("%s.%s:%d", SchedulerOf(f.Name), f.Namespace, buildbarn.PortSchedulerWorker)),
		"buildDirectories": []any{object{
			"native": object{
				"buildDirectoryPath": "/worker/build", "cacheDirectoryPath": "/worker/cache",
				"maximumCacheFileCount": c.WorkerCacheFiles,
				"maximumCacheSizeBytes": c.WorkerCacheBytes, "cacheReplacementPolicy": "LEAST_RECENTLY_USED",
			},
			"runners": []any{object{
				"endpoint":    object{"address": "unix:///worker/runner", "defaultServiceConfig": patient},
				"concurrency": w.Concurrency, "instanceNamePrefix": w.InstanceNamePrefix,
				"platform": platform(w.Platform), "workerId": object{"pod": podName, "node": nodeName},
			}},
		}},
		"inputDownloadConcurrency": 10, "outputUploadConcurrency": 11,
		"supportLegacyOutputFilesAndDirectories": true, // Bazel before version 7 names its outputs in the former fields
		"directoryCache": object{
			"maximumCount":           1000,
			"maximumSizeBytes":       1000 << 10,
			"cacheReplacementPolicy": "LEAST_RECENTLY_USED",
		},
	}
}

// runner returns the configuration of a runner that finishes its running action before it stops.
func runner() object {
	return object{
		"buildDirectoryPath": "/worker/build",
		"grpcServers": []any{
			object{"listenPaths": []any{"/worker/runner"}, "authenticationPolicy": allow, "stopGracefully": true},
		},
	}
}
