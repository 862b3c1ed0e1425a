// Command prometheus-adapter answers as prometheus-adapter's API does, by its own packages and without an API server:
//
//	prometheus-adapter CONFIG URL                                    lists the metrics: RESOURCE METRIC
//	prometheus-adapter CONFIG URL NAMESPACE RESOURCE METRIC NAME...  the values: NAME QUANTITY, of the objects that have one
//
// CONFIG is read strictly, URL is a Prometheus, RESOURCE is pods or deployments.apps. The pods and Deployments are those named.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"sort"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/provider"

	prom "sigs.k8s.io/prometheus-adapter/pkg/client"
	"sigs.k8s.io/prometheus-adapter/pkg/config"
	custom "sigs.k8s.io/prometheus-adapter/pkg/custom-provider"
	"sigs.k8s.io/prometheus-adapter/pkg/naming"
)

var kinds = []schema.GroupVersionKind{
	{Version: "v1", Kind: "Namespace"},
	{Version: "v1", Kind: "Pod"},
	{Group: "apps", Version: "v1", Kind: "Deployment"},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "prometheus-adapter:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 && len(args) < 6 {
		return errors.New("usage: prometheus-adapter CONFIG URL [NAMESPACE RESOURCE METRIC NAME...]")
	}
	cfg, err := config.FromFile(args[0])
	if err != nil {
		return err
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Version: "v1"}, {Group: "apps", Version: "v1"}})
	lists := map[schema.GroupVersionResource]string{}
	for _, kind := range kinds {
		scope := meta.RESTScopeNamespace
		if kind.Kind == "Namespace" {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(kind, scope)
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		lists[plural] = kind.Kind + "List"
	}
	namers, err := naming.NamersFromConfig(cfg.Rules, mapper)
	if err != nil {
		return err
	}
	base, err := url.Parse(args[1])
	if err != nil {
		return err
	}
	var objects []runtime.Object
	if len(args) > 2 {
		kind, err := mapper.KindFor(schema.ParseGroupResource(args[3]).WithVersion(""))
		if err != nil {
			return err
		}
		for _, name := range args[5:] {
			object := &unstructured.Unstructured{}
			object.SetGroupVersionKind(kind)
			object.SetNamespace(args[2])
			object.SetName(name)
			objects = append(objects, object)
		}
	}
	kube := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, objects...)
	client := prom.NewClient(http.DefaultClient, base, http.Header{}, http.MethodGet)
	metrics, runner := custom.NewPrometheusProvider(mapper, kube, client, namers, time.Second, time.Minute)
	stop := make(chan struct{})
	defer close(stop)
	runner.RunUntil(stop)

	deadline := time.Now().Add(20 * time.Second)
	for len(metrics.ListAllMetrics()) == 0 {
		if time.Now().After(deadline) {
			return errors.New("Prometheus has no series of any rule")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if len(args) == 2 {
		var lines []string
		for _, info := range metrics.ListAllMetrics() {
			lines = append(lines, info.GroupResource.String()+" "+info.Metric)
		}
		sort.Strings(lines)
		fmt.Println(strings.Join(lines, "\n"))
		return nil
	}
	info := provider.CustomMetricInfo{
		GroupResource: schema.ParseGroupResource(args[3]), Metric: args[4], Namespaced: true,
	}
	values, err := metrics.GetMetricBySelector(context.Background(), args[2], labels.Everything(), info, labels.Everything())
	if err != nil {
		return err
	}
	for _, value := range values.Items {
		fmt.Println(value.DescribedObject.Name, value.Value.String())
	}
	return nil
}
