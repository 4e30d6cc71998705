"""The program that writes a model as ONNX, runs what it wrote, and compares it with torch.

a model's folder -> single_graph.py -> quantize.py -> prove.py -> folder with model.onnx
                                        with --text: text.py -> model_text.onnx, its tokenizer inside
"""
